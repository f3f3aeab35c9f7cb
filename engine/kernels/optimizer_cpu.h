#pragma once

#include "engine/kernels/kernels.h"

/// The optimizer's loops for the CPU, divided among ATen's threads; fp32 vectorised by the
/// compiler. Chunks do not depend on the number of threads, so results do not either.
namespace dstrain::kernels::cpu {

void add_squares(const AddSquares& args);
void adamw(const AdamWStep& args);
void sgd(const SgdStep& args);
void adamw_bf16(const AdamWBf16Step& args);
void sgd_bf16(const SgdBf16Step& args);

}  // namespace dstrain::kernels::cpu
