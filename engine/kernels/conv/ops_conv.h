#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/conv/conv.h"
#include "engine/kernels/conv/image_activation.h"
#include "engine/kernels/conv/residual_gradient.h"
#include "engine/kernels/parameter.h"

/// Convolutions with their gradients; rules in engine/kernels/ops.h, legend in conv.h.
namespace dstrain::ops {

/// activation(conv(x) + bias). x [B, H, W, in] -> [B, H', W', out]; x may be any view, such as that
/// of images [B, C, H, W], which is kept as it is. Saves x, and with an activation (none or relu)
/// its output, which the next operator keeps, too. `left`: another part of x's gradient, if used.
/// `leaves`: where x's gradient is left instead, if used, for an operator that ran before this one.
[[nodiscard]] at::Tensor conv(const at::Tensor& x_BHWC, const ConvShape& shape, Parameter& weight,
                              Parameter* bias = nullptr,
                              ImageActivation activation = ImageActivation::none,
                              const ResidualGradient& left = {},
                              const ResidualGradient& leaves = {});

}  // namespace dstrain::ops
