#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/ops.h"

/// The activation of gated MLPs without autograd; what operators share, not for other layers.
namespace dstrain::ops {

/// act(gate) * up of gate_up [M, 2F] -> [M, F]; its largest values are left in `maxima`, and the
/// largest gains of its gradient (kernels::Swiglu) in `gains`, where they are defined (maxima_for).
[[nodiscard]] at::Tensor swiglu_of(const at::Tensor& gate_up, GateActivation gate,
                                   const at::Tensor& maxima = {}, const at::Tensor& gains = {});

struct SwigluGradients {
  at::Tensor gate_up, h;
};
/// The gradient of gate and up; with `again` also what forward gave.
[[nodiscard]] SwigluGradients swiglu_gradients(const at::Tensor& gate_up, GateActivation gate,
                                               const at::Tensor& dh, bool again);

/// The same in codes.
struct SwigluCodes {
  Quantized gate_up;  ///< e5m2
  at::Tensor h;       ///< columns in e4m3, or undefined
};
/// Equal to the codes of what swiglu_gradients gives, with the scale of a bound of their largest
/// value (kernels::SwigluCodes). `gains` as swiglu_of left them on a GPU. `h_scale` is that of h's
/// codes; undefined: h is not wanted.
[[nodiscard]] SwigluCodes swiglu_codes(const at::Tensor& gate_up, GateActivation gate,
                                       const at::Tensor& gains, const at::Tensor& dh, Sides sides,
                                       const at::Tensor& h_scale);

}  // namespace dstrain::ops
