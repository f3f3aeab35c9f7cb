#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/ops.h"

/// GELU with a bias without autograd; what operators share, not for other layers.
namespace dstrain::ops {

/// gelu(z + bias), z [M, F]; null: z holds the bias.
[[nodiscard]] at::Tensor gelu_of(const at::Tensor& z, const Parameter* bias, Gelu kind);

struct GeluGradients {
  at::Tensor z, y;
};
struct GeluGradientWants {
  bool again = false;        ///< what forward gave
  bool column_sums = false;  ///< of the gradient of z, which carries them (output_gradient.h)
};
/// The gradient of z; that of the bias is added to it, where there is one and it is trained.
[[nodiscard]] GeluGradients gelu_gradients(const at::Tensor& z, Parameter* bias,
                                           const at::Tensor& dy, Gelu kind,
                                           const GeluGradientWants& wants);

}  // namespace dstrain::ops
