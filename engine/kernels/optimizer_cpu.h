#pragma once

#include "engine/kernels/kernels.h"

/// The optimizer's loops for the CPU: fp32, vectorised by the compiler, divided among ATen's
/// threads. Chunks do not depend on the number of threads, so results do not either.
namespace dstrain::kernels::cpu {

void add_squares(const AddSquares& args);
void adamw(const AdamWStep& args);
void sgd(const SgdStep& args);

}  // namespace dstrain::kernels::cpu
