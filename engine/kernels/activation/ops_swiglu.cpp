#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/gate_context.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/activation/swiglu.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using kernels::Fp8Format;

namespace {

/// The activation of a gate in fp32 by ATen, and the gradient through it.
at::Tensor activated(const at::Tensor& gate, GateActivation kind) {
  return kind == GateActivation::silu ? at::silu(gate) : at::gelu(gate, "tanh");
}
at::Tensor through(const at::Tensor& grad, const at::Tensor& gate, GateActivation kind) {
  return kind == GateActivation::silu ? at::silu_backward(grad, gate)
                                      : at::gelu_backward(grad, gate, "tanh");
}

}  // namespace

at::Tensor swiglu_of(const at::Tensor& gate_up, GateActivation gate, const at::Tensor& maxima,
                     const at::Tensor& gains) {
  const std::int64_t rows = gate_up.size(0), cols = gate_up.size(1) / 2;
  if (!gate_up.is_cuda()) {
    const at::Tensor both = gate_up.to(at::kFloat);
    return (activated(both.narrow(1, 0, cols), gate) * both.narrow(1, cols, cols))
        .to(gate_up.scalar_type());
  }
  at::Tensor h = at::empty({rows, cols}, gate_up.options());
  kernels::cuda::swiglu({.gate_up = gate_up.const_data_ptr(),
                         .h = h.mutable_data_ptr(),
                         .rows = rows,
                         .cols = cols,
                         .dtype = kernel_dtype(gate_up),
                         .partial = fp32_or_null(maxima),
                         .gains = fp32_or_null(gains),
                         .gate = gate},
                        current_stream());
  return h;
}

SwigluGradients swiglu_gradients(const at::Tensor& gate_up, GateActivation kind,
                                 const at::Tensor& dh, bool again) {
  const std::int64_t rows = gate_up.size(0), cols = gate_up.size(1) / 2;
  if (!gate_up.is_cuda()) {
    const at::Tensor both = gate_up.to(at::kFloat), dh32 = dh.to(at::kFloat);
    const at::Tensor gate = both.narrow(1, 0, cols), up = both.narrow(1, cols, cols);
    const at::Tensor grad =
        at::cat({through(dh32 * up, gate, kind), dh32 * activated(gate, kind)}, 1);
    return {grad.to(gate_up.scalar_type()), again ? swiglu_of(gate_up, kind) : at::Tensor()};
  }
  SwigluGradients out{at::empty_like(gate_up), again ? at::empty_like(dh) : at::Tensor()};
  kernels::cuda::swiglu_backward({.gate_up = gate_up.const_data_ptr(),
                                  .grad_h = dh.const_data_ptr(),
                                  .grad_gate_up = out.gate_up.mutable_data_ptr(),
                                  .h = again ? out.h.mutable_data_ptr() : nullptr,
                                  .rows = rows,
                                  .cols = cols,
                                  .dtype = kernel_dtype(gate_up),
                                  .gate = kind},
                                 current_stream());
  return out;
}

namespace {

/// kernels::Swiglu::gains, on the CPU.
at::Tensor largest_gain(const at::Tensor& gate_up, GateActivation gate) {
  const std::int64_t cols = gate_up.size(1) / 2;
  const at::Tensor both = gate_up.to(at::kFloat);
  return (both.narrow(1, cols, cols).abs().max() * kernels::gate_slope(gate))
      .maximum(activated(both.narrow(1, 0, cols), gate).abs().max());
}

}  // namespace

SwigluCodes swiglu_codes(const at::Tensor& gate_up, GateActivation gate, const at::Tensor& gains,
                         const at::Tensor& dh, Sides sides, const at::Tensor& h_scale) {
  const bool again = h_scale.defined();
  if (!gate_up.is_cuda()) {
    const SwigluGradients plain = swiglu_gradients(gate_up, gate, dh, again);
    const at::Tensor bound = dh.to(at::kFloat).abs().max() * largest_gain(gate_up, gate);
    SwigluCodes out{.gate_up = quantize(plain.gate_up, Fp8Format::e5m2, sides, {.maxima = bound}),
                    .h = {}};
    if (again)
      out.h = quantize(plain.h, Fp8Format::e4m3, Sides::columns, {.scale = h_scale}).columns;
    return out;
  }
  const std::int64_t rows = dh.size(0), cols = dh.size(1);
  SwigluCodes out{.gate_up = empty_codes(dh, rows, 2 * cols, Fp8Format::e5m2, sides), .h = {}};
  if (again) out.h = empty_codes(dh, rows, cols, Fp8Format::e4m3, Sides::columns).columns;
  const at::Tensor maxima = maxima_of(dh);
  kernels::cuda::swiglu_codes({.gate_up = gate_up.const_data_ptr(),
                               .grad_h = dh.const_data_ptr(),
                               .maxima = maxima.const_data_ptr<float>(),
                               .gains = gains.const_data_ptr<float>(),
                               .scale = out.gate_up.scale.mutable_data_ptr<float>(),
                               .out = code_bytes(out.gate_up.rows),
                               .out_t = code_bytes(out.gate_up.columns),
                               .h_scale = again ? h_scale.const_data_ptr<float>() : nullptr,
                               .h_t = code_bytes(out.h),
                               .rows = rows,
                               .cols = cols,
                               .dtype = kernel_dtype(dh),
                               .gate = gate},
                              current_stream());
  return out;
}

namespace {

struct SwigluLinear : torch::autograd::Function<SwigluLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* weight,
                            GateActivation gate) {
    const at::Tensor gate_up = dense(input);
    const at::Tensor maxima = maxima_for(*weight, gate_up);
    const LinearOutput out =
        apply_linear({swiglu_of(gate_up, gate, maxima), maxima}, *weight, nullptr, Keep::nothing);
    context->save_for_backward({gate_up, out.scale, out.weight_scale});
    keep_gate(context, gate);
    keep(context, "weight", weight);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate_up = saved[0], &scale = saved[1];
    Parameter& weight = kept(context, "weight");
    const LinearGradient dy(grads[0], weight, nullptr, /*for_input=*/true);
    SwigluGradients gradients =
        swiglu_gradients(gate_up, kept_gate(context), dy.input(saved[2]), weight.trainable);
    if (weight.trainable) {
      at::Tensor& h = gradients.h;
      if (scale.defined())
        h = quantize(h, Fp8Format::e4m3, Sides::columns, {.scale = scale}).columns;
      dy.add_to_parameters(h, scale);
    }
    return {gradients.gate_up, {}, {}, {}};
  }
};

}  // namespace

at::Tensor swiglu_linear(const at::Tensor& gate_up, Parameter& weight, GateActivation gate) {
  DSTRAIN_CHECK(gate_up.dim() == 2 && gate_up.size(1) == 2 * columns_of(weight),
                fmt::format("swiglu_linear: gate_up {}, weight {}", shape_of(gate_up),
                            shape_of(weight.value)));
  return SwigluLinear::apply(gate_up, anchor_for(gate_up, weight.trainable), &weight, gate);
}

}  // namespace dstrain::ops
