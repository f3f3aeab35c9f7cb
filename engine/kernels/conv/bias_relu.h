#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/parameter.h"

/// Bias and ReLU behind a convolution, one pass each way on a GPU; no autograd. Legend in conv.h.
namespace dstrain::ops {

/// y [B, H, W, out] = relu(y + bias), in place; `bias` undefined: none; without `relu` the sum
/// alone.
void add_bias_relu(const at::Tensor& y, const at::Tensor& bias, bool relu);

/// dy before the ReLU, whose output y is undefined where there was none; adds the gradient of the
/// bias, unless that is null or frozen.
[[nodiscard]] at::Tensor bias_relu_gradient(const at::Tensor& dy, const at::Tensor& y,
                                            Parameter* bias);

}  // namespace dstrain::ops
