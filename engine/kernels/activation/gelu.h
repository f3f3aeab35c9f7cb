#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/ops.h"

/// GELU with a bias without autograd; what operators share, not for other layers.
namespace dstrain::ops {

/// gelu(z + bias), z [M, F].
[[nodiscard]] at::Tensor gelu_of(const at::Tensor& z, const Parameter& bias, Gelu kind);

struct GeluGradients {
  at::Tensor z, y;
};
/// The gradient of z; that of the bias is added to it, where it is trained. With `again` also what
/// forward gave.
[[nodiscard]] GeluGradients gelu_gradients(const at::Tensor& z, Parameter& bias,
                                           const at::Tensor& dy, Gelu kind, bool again);

}  // namespace dstrain::ops
