#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const char* aten_name(Gelu kind) { return kind == Gelu::tanh ? "tanh" : "none"; }

kernels::Gelu kernel_kind(Gelu kind) {
  return kind == Gelu::tanh ? kernels::Gelu::tanh : kernels::Gelu::erf;
}

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* bias, bool tanh) {
    const at::Tensor z = dense(input);
    const Gelu kind = tanh ? Gelu::tanh : Gelu::erf;
    context->save_for_backward({z});
    keep(context, "bias", bias);
    context->saved_data["tanh"] = tanh;
    const at::Tensor& b = value_of(*bias, z);
    if (!z.is_cuda()) return at::gelu(z.to(at::kFloat) + b, aten_name(kind)).to(z.scalar_type());
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

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor z = context->get_saved_variables()[0], dy = dense(grads[0]);
    const Gelu kind = context->saved_data.at("tanh").toBool() ? Gelu::tanh : Gelu::erf;
    Parameter& bias = kept(context, "bias");
    const at::Tensor& b = value_of(bias, z);
    if (!z.is_cuda()) {
      const at::Tensor dz =
          at::gelu_backward(dy.to(at::kFloat), z.to(at::kFloat) + b, aten_name(kind));
      if (bias.trainable) gradient_of(bias, z).add_(dz.sum(0));
      return {dz.to(z.scalar_type()), {}, {}, {}};
    }
    at::Tensor dz = at::empty_like(z), partial;
    if (bias.trainable)
      partial = scratch(z, {kernels::column_partials(z.size(0), z.size(1)), z.size(1)});
    kernels::cuda::bias_gelu_backward(
        {.z = z.const_data_ptr(),
         .bias = b.const_data_ptr(),
         .grad_y = dy.const_data_ptr(),
         .grad_z = dz.mutable_data_ptr(),
         .grad_bias = bias.trainable ? gradient_of(bias, z).mutable_data_ptr<float>() : nullptr,
         .partial = bias.trainable ? partial.mutable_data_ptr<float>() : nullptr,
         .rows = z.size(0),
         .cols = z.size(1),
         .dtype = kernel_dtype(z),
         .kind = kernel_kind(kind)},
        current_stream());
    return {dz, {}, {}, {}};
  }
};

}  // namespace

at::Tensor bias_gelu(const at::Tensor& z_MN, Parameter& bias, Gelu kind) {
  DSTRAIN_CHECK(z_MN.dim() == 2 && value_of(bias, z_MN).numel() == z_MN.size(1),
                fmt::format("bias_gelu: z {}, bias {}", shape_of(z_MN), shape_of(bias.value)));
  return BiasGelu::apply(z_MN, anchor_for(z_MN, bias.trainable), &bias, kind == Gelu::tanh);
}

}  // namespace dstrain::ops
