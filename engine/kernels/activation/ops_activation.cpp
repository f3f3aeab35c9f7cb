#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu_backward.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/gelu.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/kernels/tensor/ranked_linear.h"
#include "engine/kernels/tensor/rows_beside.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const char* aten_name(Gelu kind) { return kind == Gelu::tanh ? "tanh" : "none"; }

kernels::Gelu kernel_kind(Gelu kind) {
  switch (kind) {
    case Gelu::erf:
      return kernels::Gelu::erf;
    case Gelu::tanh:
      return kernels::Gelu::tanh;
    case Gelu::quick:
      break;
  }
  return kernels::Gelu::quick;
}

constexpr double kQuick = 1.702;  // kernels::kQuickGelu, unrounded

at::Tensor gelu_on_cpu(const at::Tensor& x, Gelu kind) {
  return kind == Gelu::quick ? (x * kQuick).sigmoid_().mul_(x) : at::gelu(x, aten_name(kind));
}

at::Tensor gelu_gradient_on_cpu(const at::Tensor& dy, const at::Tensor& x, Gelu kind) {
  if (kind != Gelu::quick) return at::gelu_backward(dy, x, aten_name(kind));
  // It is silu(kx) / k, so its slope is silu's.
  at::Tensor dx = x * kQuick;
  return at::silu_backward_out(dx, dy, dx);
}

}  // namespace

at::Tensor gelu_of(const at::Tensor& z, const Parameter& bias, Gelu kind) {
  const at::Tensor& b = value_of(bias, z);
  if (!z.is_cuda()) return gelu_on_cpu(z.to(at::kFloat) + b, kind).to(z.scalar_type());
  at::Tensor y = at::empty_like(z);
  kernels::cuda::bias_gelu({.z = z.const_data_ptr(),
                            .bias = b.const_data_ptr(),
                            .y = y.mutable_data_ptr(),
                            .rows = z.size(0),
                            .cols = z.size(1),
                            .dtype = kernel_dtype(z),
                            .kind = kernel_kind(kind)},
                           current_stream());
  return y;
}

GeluGradients gelu_gradients(const at::Tensor& z, Parameter& bias, const at::Tensor& dy, Gelu kind,
                             bool again) {
  const at::Tensor& b = value_of(bias, z);
  if (!z.is_cuda()) {
    const at::Tensor dz = gelu_gradient_on_cpu(dy.to(at::kFloat), z.to(at::kFloat) + b, kind);
    GradientSink(bias, z).rows(dz);
    return {dz.to(z.scalar_type()), again ? gelu_of(z, bias, kind) : at::Tensor()};
  }
  GeluGradients out{at::empty_like(z), again ? at::empty_like(z) : at::Tensor()};
  at::Tensor partial;
  if (bias.trainable)
    partial = scratch(z, {kernels::column_partials(z.size(0), z.size(1)), z.size(1)});
  kernels::cuda::bias_gelu_backward(
      {.z = z.const_data_ptr(),
       .bias = b.const_data_ptr(),
       .grad_y = dy.const_data_ptr(),
       .grad_z = out.z.mutable_data_ptr(),
       .grad_bias = GradientSink(bias, z).vector(),
       .partial = bias.trainable ? partial.mutable_data_ptr<float>() : nullptr,
       .rows = z.size(0),
       .cols = z.size(1),
       .dtype = kernel_dtype(z),
       .kind = kernel_kind(kind),
       .y = again ? out.y.mutable_data_ptr() : nullptr},
      current_stream());
  return out;
}

namespace {

Gelu kind_of(AutogradContext* context) {
  return static_cast<Gelu>(context->saved_data.at("kind").toInt());
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* bias, Gelu kind) {
    const at::Tensor z = dense(input);
    context->save_for_backward({z});
    keep(context, "bias", bias);
    context->saved_data["kind"] = static_cast<std::int64_t>(kind);
    return gelu_of(z, *bias, kind);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor z = context->get_saved_variables()[0];
    return {gelu_gradients(z, kept(context, "bias"), dense(grads[0]), kind_of(context), false).z,
            {},
            {},
            {}};
  }
};

struct GeluLinear : torch::autograd::Function<GeluLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* input_bias,
                            Parameter* weight, Parameter* bias, Gelu kind, Communicator* summed,
                            Keep keeping) {
    const at::Tensor z = dense(input);
    context->saved_data["kind"] = static_cast<std::int64_t>(kind);
    const LinearOutput out = apply_linear(gelu_of(z, *input_bias, kind), *weight, bias,
                                          keep_hidden(keeping, *weight, z), {.summed = summed});
    context->save_for_backward({z, out.scale, out.weight_scale, out.kept});
    keep(context, "input_bias", input_bias);
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    keep_ranks(context, summed);
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &z = saved[0], &scale = saved[1];
    Parameter& weight = kept(context, "weight");
    const RankedGradient dy =
        gradient_of_sum(grads[0], weight, kept_or_null(context, "bias"), /*for_input=*/true,
                        saved[2], kept_ranks_or_null(context));
    const bool again = weight.trainable && !saved[3].defined();
    GeluGradients gradients =
        gelu_gradients(z, kept(context, "input_bias"), dy.input, kind_of(context), again);
    at::Tensor y = again ? gradients.y : saved[3];
    if (y.defined() && scale.defined())
      y = quantize(y, kernels::Fp8Format::e4m3, Sides::columns, {.scale = scale}).columns;
    dy.output.add_to_parameters(y, scale);
    return {gradients.z, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor bias_gelu(const at::Tensor& z_MN, Parameter& bias, Gelu kind) {
  DSTRAIN_CHECK(z_MN.dim() == 2 && value_of(bias, z_MN).numel() == z_MN.size(1),
                fmt::format("bias_gelu: z {}, bias {}", shape_of(z_MN), shape_of(bias.value)));
  return BiasGelu::apply(z_MN, anchor_for(z_MN, bias.trainable), &bias, kind);
}

namespace {

at::Tensor gelu_linear(const at::Tensor& z_MF, Parameter& input_bias, Parameter& weight,
                       Parameter* bias, Gelu kind, Communicator* summed, Keep keep) {
  check_linear(z_MF, weight, bias);
  DSTRAIN_CHECK(
      value_of(input_bias, z_MF).numel() == z_MF.size(1),
      fmt::format("gelu_linear: z {}, its bias {}", shape_of(z_MF), shape_of(input_bias.value)));
  const bool any_trainable =
      weight.trainable || input_bias.trainable || (bias != nullptr && bias->trainable);
  return GeluLinear::apply(z_MF, anchor_for(z_MF, any_trainable), &input_bias, &weight, bias, kind,
                           summed, keep);
}

}  // namespace

at::Tensor gelu_linear(const at::Tensor& z_MF, Parameter& input_bias, Parameter& weight,
                       Parameter* bias, Gelu kind, Keep keep) {
  return gelu_linear(z_MF, input_bias, weight, bias, kind, nullptr, keep);
}

at::Tensor summed_gelu_linear(const at::Tensor& z_MF, Parameter& input_bias, Parameter& weight,
                              Gelu kind, Communicator* ranks, Keep keep) {
  return gelu_linear(z_MF, input_bias, weight, nullptr, kind, others(ranks), keep);
}

}  // namespace dstrain::ops
