#pragma once

#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/optimizer/optimizer_update.h"

/// The optimizer's loops for the CPU, divided among ATen's threads; fp32 vectorised by the
/// compiler. Chunks do not depend on the number of threads, so results do not either.
namespace dstrain::kernels::cpu {

void add_squares(const AddSquares& args);
void update(const OptimizerUpdate& args);

}  // namespace dstrain::kernels::cpu
