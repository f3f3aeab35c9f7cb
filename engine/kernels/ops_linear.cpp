#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The weight as [N, K], whatever its trailing shape.
at::Tensor matrix_of(const Parameter& weight, const at::Tensor& x) {
  const at::Tensor& value = value_of(weight, x);
  return value.view({value.size(0), -1});
}

void check_shapes(const at::Tensor& x, const Parameter& weight, const Parameter& bias) {
  const at::Tensor matrix = matrix_of(weight, x);
  DSTRAIN_CHECK(
      x.dim() == 2 && matrix.size(1) == x.size(1) && value_of(bias, x).numel() == matrix.size(0),
      fmt::format("linear: x {}, weight {}, bias {}", shape_of(x), shape_of(weight.value),
                  shape_of(bias.value)));
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* weight, Parameter* bias) {
    const at::Tensor x = dense(input);
    context->save_for_backward({x});
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    return at::addmm(value_of(*bias, x), x, matrix_of(*weight, x).t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor x = context->get_saved_variables()[0], dy = dense(grads[0]);
    Parameter& weight = kept(context, "weight");
    add_bias_gradient(dy, gradient_of(kept(context, "bias"), x));
    add_weight_gradient(x, dy, gradient_of(weight, x));
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = at::mm(dy, matrix_of(weight, x));
    return {dx, {}, {}, {}};
  }
};

at::Tensor bias_gelu(const at::Tensor& z, const at::Tensor& bias) {
  if (!z.is_cuda()) return at::gelu(z.to(at::kFloat) + bias).to(z.scalar_type());
  at::Tensor y = at::empty_like(z);
  kernels::cuda::bias_gelu({.z = z.const_data_ptr(),
                            .bias = bias.const_data_ptr(),
                            .y = y.mutable_data_ptr(),
                            .rows = z.size(0),
                            .cols = z.size(1),
                            .dtype = kernel_dtype(z)},
                           current_stream());
  return y;
}

/// The gradient of z; adds that of the bias.
at::Tensor bias_gelu_backward(const at::Tensor& dy, const at::Tensor& z, const at::Tensor& bias,
                              const at::Tensor& grad_bias) {
  if (!z.is_cuda()) {
    const at::Tensor dz = at::gelu_backward(dy.to(at::kFloat), z.to(at::kFloat) + bias);
    grad_bias.add_(dz.sum(0));
    return dz.to(z.scalar_type());
  }
  at::Tensor dz = at::empty_like(z);
  const at::Tensor partial =
      scratch(z, {kernels::column_partials(z.size(0), z.size(1)), z.size(1)});
  kernels::cuda::bias_gelu_backward({.z = z.const_data_ptr(),
                                     .bias = bias.const_data_ptr(),
                                     .grad_y = dy.const_data_ptr(),
                                     .grad_z = dz.mutable_data_ptr(),
                                     .grad_bias = grad_bias.mutable_data_ptr<float>(),
                                     .partial = partial.mutable_data_ptr<float>(),
                                     .rows = z.size(0),
                                     .cols = z.size(1),
                                     .dtype = kernel_dtype(z)},
                                    current_stream());
  return dz;
}

/// Saves z = x weight^T without the bias: adding it again in backward is free there and saves
/// writing z twice here.
struct LinearGelu : torch::autograd::Function<LinearGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* weight, Parameter* bias) {
    const at::Tensor x = dense(input);
    const at::Tensor z = at::mm(x, matrix_of(*weight, x).t());
    context->save_for_backward({x, z});
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    return bias_gelu(z, value_of(*bias, x));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &z = saved[1];
    Parameter &weight = kept(context, "weight"), &bias = kept(context, "bias");
    const at::Tensor dz =
        bias_gelu_backward(dense(grads[0]), z, value_of(bias, x), gradient_of(bias, x));
    add_weight_gradient(x, dz, gradient_of(weight, x));
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = at::mm(dz, matrix_of(weight, x));
    return {dx, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x_MK, Parameter& weight, Parameter& bias) {
  check_shapes(x_MK, weight, bias);
  return Linear::apply(x_MK, anchor_for(x_MK), &weight, &bias);
}

at::Tensor linear_gelu(const at::Tensor& x_MK, Parameter& weight, Parameter& bias) {
  check_shapes(x_MK, weight, bias);
  return LinearGelu::apply(x_MK, anchor_for(x_MK), &weight, &bias);
}

}  // namespace dstrain::ops
