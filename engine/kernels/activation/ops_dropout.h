#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/ops.h"

/// Dropout by a counter-based generator: the mask is drawn again where it is needed again.
namespace dstrain::ops {

/// x / (1 - share) or 0, without autograd; x [M, N] or, where it is whole, of any shape. The
/// gradient is the same map of the output's.
[[nodiscard]] at::Tensor drop(const at::Tensor& x, const DropMask& mask);

/// The same with its gradient. Saves nothing. Srivastava et al. 2014, JMLR 15, sec. 4.
[[nodiscard]] at::Tensor dropout(const at::Tensor& x, const DropMask& mask);

}  // namespace dstrain::ops
