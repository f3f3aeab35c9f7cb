#pragma once

#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/call.h"

namespace dstrain {

/// The rows of all tensor ranks; without others x itself, with what is known of it.
[[nodiscard]] inline ops::Measured gathered(const ops::Measured& x_mD, const Call& call) {
  return call.tensor() == nullptr ? x_mD
                                  : ops::all_gather_rows(x_mD.rows, call.tensor(), call.overlap);
}

}  // namespace dstrain
