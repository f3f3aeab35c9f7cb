#pragma once

#include <ATen/core/Tensor.h>

/// The activation of gated MLPs without autograd; what operators share, not for other layers.
namespace dstrain::ops {

/// silu(gate) * up of gate_up [M, 2F] -> [M, F].
[[nodiscard]] at::Tensor swiglu_of(const at::Tensor& gate_up);

struct SwigluGradients {
  at::Tensor gate_up, h;
};
/// The gradient of gate and up; with `again` also what forward gave.
[[nodiscard]] SwigluGradients swiglu_gradients(const at::Tensor& gate_up, const at::Tensor& dh,
                                               bool again);

}  // namespace dstrain::ops
