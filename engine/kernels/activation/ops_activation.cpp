#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/gelu.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/linear/needs_context.h"
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
  return kind == Gelu::tanh ? kernels::Gelu::tanh : kernels::Gelu::erf;
}

at::Tensor with_bias(const at::Tensor& z, const Parameter* bias) {
  return bias == nullptr ? z.to(at::kFloat) : z.to(at::kFloat) + value_of(*bias, z);
}

const void* values_or_null(const Parameter* bias, const at::Tensor& z) {
  return bias == nullptr ? nullptr : value_of(*bias, z).const_data_ptr();
}

}  // namespace

at::Tensor gelu_of(const at::Tensor& z, const Parameter* bias, Gelu kind) {
  if (!z.is_cuda()) return at::gelu(with_bias(z, bias), aten_name(kind)).to(z.scalar_type());
  at::Tensor y = at::empty(z.sizes(), z.options());
  kernels::cuda::bias_gelu({.z = z.const_data_ptr(),
                            .bias = values_or_null(bias, z),
                            .y = y.mutable_data_ptr(),
                            .rows = z.size(0),
                            .cols = z.size(1),
                            .dtype = kernel_dtype(z),
                            .kind = kernel_kind(kind)},
                           current_stream());
  return y;
}

GeluGradients gelu_gradients(const at::Tensor& z, Parameter* bias, const at::Tensor& dy, Gelu kind,
                             const GeluGradientWants& wants) {
  const bool trains_bias = bias != nullptr && bias->trainable;
  if (!z.is_cuda()) {
    const at::Tensor exact =
        at::gelu_backward(dy.to(at::kFloat), with_bias(z, bias), aten_name(kind));
    if (trains_bias) gradient_of(*bias, z).add_(exact.sum(0));
    const at::Tensor dz = exact.to(z.scalar_type());
    if (wants.column_sums) set_findings(dz, {.column_sums = exact.sum(0, /*keepdim=*/true)});
    return {dz, wants.again ? gelu_of(z, bias, kind) : at::Tensor()};
  }
  const auto like_z = [&] { return at::empty(z.sizes(), z.options()); };
  GeluGradients out{like_z(), wants.again ? like_z() : at::Tensor()};
  at::Tensor partial;
  if (trains_bias || wants.column_sums)
    partial = scratch(z, {kernels::column_partials(z.size(0), z.size(1)), z.size(1)});
  kernels::cuda::bias_gelu_backward(
      {.z = z.const_data_ptr(),
       .bias = values_or_null(bias, z),
       .grad_y = dy.const_data_ptr(),
       .grad_z = out.z.mutable_data_ptr(),
       .grad_bias = trains_bias ? gradient_of(*bias, z).mutable_data_ptr<float>() : nullptr,
       .partial = fp32_or_null(partial),
       .rows = z.size(0),
       .cols = z.size(1),
       .dtype = kernel_dtype(z),
       .kind = kernel_kind(kind),
       .y = wants.again ? out.y.mutable_data_ptr() : nullptr},
      current_stream());
  if (wants.column_sums) set_findings(out.z, {.column_sums = partial});
  return out;
}

namespace {

Gelu kind_of(AutogradContext* context) {
  return context->saved_data.at("tanh").toBool() ? Gelu::tanh : Gelu::erf;
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* bias, bool tanh) {
    const at::Tensor z = dense(input);
    context->save_for_backward({z});
    keep(context, "bias", bias);
    context->saved_data["tanh"] = tanh;
    return gelu_of(z, bias, kind_of(context));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor z = context->get_saved_variables()[0];
    return {gelu_gradients(z, &kept(context, "bias"), dense(grads[0]), kind_of(context), {}).z,
            {},
            {},
            {}};
  }
};

/// What GELU gave, no input of autograd's; undefined: not known.
struct KnownOutput {
  at::Tensor y;
};

struct GeluLinear : torch::autograd::Function<GeluLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, const KnownOutput& known,
                            Parameter* input_bias, Parameter* weight, Parameter* bias, bool tanh,
                            Communicator* summed, Keep keeping) {
    const at::Tensor z = dense(input);
    context->saved_data["tanh"] = tanh;
    const at::Tensor y = known.y.defined() ? known.y : gelu_of(z, input_bias, kind_of(context));
    const LinearOutput out =
        apply_linear(y, *weight, bias, keep_hidden(keeping, *weight, z), {.summed = summed});
    context->save_for_backward({z, out.scale, out.weight_scale, out.kept});
    keep(context, "input_bias", known.y.defined() ? nullptr : input_bias);
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    keep_ranks(context, summed);
    keep_needs(context, needs_of(input));
    return out.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &z = saved[0], &scale = saved[1];
    Parameter& weight = kept(context, "weight");
    Parameter *input_bias = kept_or_null(context, "input_bias"),
              *bias = kept_or_null(context, "bias");
    const bool again = weight.trainable && !saved[3].defined();
    if (input_bias == nullptr && !again && kind_of(context) == Gelu::tanh) {
      const LinearGradient dy(grads[0], weight, bias, /*for_input=*/true);
      if (const at::Tensor dz = dy.input_before_gelu(z); dz.defined()) {
        dy.add_to_parameters(saved[3], scale);
        return {dz, {}, {}, {}, {}, {}, {}, {}, {}};
      }
    }
    const RankedGradient dy = gradient_of_sum(grads[0], weight, bias, /*for_input=*/true, saved[2],
                                              kept_ranks_or_null(context));
    GeluGradients gradients =
        gelu_gradients(z, input_bias, dy.input, kind_of(context),
                       {.again = again,
                        .column_sums = input_bias == nullptr && kept_needs(context).column_sums});
    at::Tensor y = again ? gradients.y : saved[3];
    if (y.defined() && scale.defined())
      y = quantize(y, kernels::Fp8Format::e4m3, Sides::columns, {.scale = scale}).columns;
    dy.output.add_to_parameters(y, scale);
    return {gradients.z, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor bias_gelu(const at::Tensor& z_MN, Parameter& bias, Gelu kind) {
  DSTRAIN_CHECK(z_MN.dim() == 2 && value_of(bias, z_MN).numel() == z_MN.size(1),
                fmt::format("bias_gelu: z {}, bias {}", shape_of(z_MN), shape_of(bias.value)));
  return BiasGelu::apply(z_MN, anchor_for(z_MN, bias.trainable), &bias, kind == Gelu::tanh);
}

namespace {

at::Tensor gelu_linear(const GeluInput& input, Parameter& input_bias, Parameter& weight,
                       Parameter* bias, Gelu kind, Communicator* summed, Keep keep) {
  const at::Tensor& z = input.z;
  check_linear(z, weight, bias);
  DSTRAIN_CHECK(
      value_of(input_bias, z).numel() == z.size(1) &&
          (!input.y.defined() || input.y.sizes() == z.sizes()),
      fmt::format("gelu_linear: z {}, its bias {}", shape_of(z), shape_of(input_bias.value)));
  const bool any_trainable =
      weight.trainable || input_bias.trainable || (bias != nullptr && bias->trainable);
  return GeluLinear::apply(z, anchor_for(z, any_trainable), KnownOutput{input.y}, &input_bias,
                           &weight, bias, kind == Gelu::tanh, summed, keep);
}

}  // namespace

at::Tensor gelu_linear(const GeluInput& z_MF, Parameter& input_bias, Parameter& weight,
                       Parameter* bias, Gelu kind, Keep keep) {
  return gelu_linear(z_MF, input_bias, weight, bias, kind, nullptr, keep);
}

at::Tensor summed_gelu_linear(const GeluInput& z_MF, Parameter& input_bias, Parameter& weight,
                              Gelu kind, Communicator* ranks, Keep keep) {
  return gelu_linear(z_MF, input_bias, weight, nullptr, kind, others(ranks), keep);
}

}  // namespace dstrain::ops
