#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormed {
  at::Tensor sum, y, rstd;
};

RmsNormed rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& delta,
                               const at::Tensor& weight, double eps) {
  const at::Tensor sum = delta.defined() ? x + delta : x, wide = sum.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(wide.pow(2).mean(-1) + eps);
  return {sum, weight * (wide * rstd.unsqueeze(1)).to(x.scalar_type()), rstd};
}

RmsNormed rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& delta,
                                const at::Tensor& weight, double eps) {
  RmsNormed out{.sum = delta.defined() ? at::empty_like(x) : x,
                .y = at::empty_like(x),
                .rstd = scratch(x, {x.size(0)})};
  kernels::cuda::add_rms_norm({.x = x.const_data_ptr(),
                               .delta = delta.defined() ? delta.const_data_ptr() : nullptr,
                               .weight = weight.const_data_ptr(),
                               .sum = delta.defined() ? out.sum.mutable_data_ptr() : nullptr,
                               .y = out.y.mutable_data_ptr(),
                               .rstd = out.rstd.mutable_data_ptr<float>(),
                               .rows = x.size(0),
                               .dim = x.size(1),
                               .eps = static_cast<float>(eps),
                               .dtype = kernel_dtype(x)},
                              current_stream());
  return out;
}

struct RmsNormGradients {
  at::Tensor grad_y, grad_sum;  ///< grad_sum may be undefined
};

/// `grad_weight` is undefined for a frozen weight.
at::Tensor rms_norm_backward_cpu(const RmsNormGradients& grads, const RmsNormed& saved,
                                 const at::Tensor& weight, const at::Tensor& grad_weight) {
  const at::Tensor rstd = saved.rstd.unsqueeze(1), x_hat = saved.sum.to(at::kFloat) * rstd;
  const at::Tensor grad_y = grads.grad_y.to(at::kFloat), scaled = grad_y * weight.to(at::kFloat);
  if (grad_weight.defined()) grad_weight.add_((grad_y * x_hat).sum(0).view_as(grad_weight));
  at::Tensor dx = rstd * (scaled - x_hat * (scaled * x_hat).mean(-1, true));
  if (grads.grad_sum.defined()) dx.add_(grads.grad_sum);
  return dx.to(saved.sum.scalar_type());
}

at::Tensor rms_norm_backward_cuda(const RmsNormGradients& grads, const RmsNormed& saved,
                                  const at::Tensor& weight, const at::Tensor& grad_weight) {
  const std::int64_t rows = saved.sum.size(0), dim = saved.sum.size(1);
  const bool wanted = grad_weight.defined();
  at::Tensor dx = at::empty_like(saved.sum), partial;
  if (wanted) partial = scratch(dx, {kernels::norm_partials(rows), dim});
  kernels::cuda::add_rms_norm_backward(
      {.sum = saved.sum.const_data_ptr(),
       .weight = weight.const_data_ptr(),
       .grad_y = grads.grad_y.const_data_ptr(),
       .grad_sum = grads.grad_sum.defined() ? grads.grad_sum.const_data_ptr() : nullptr,
       .rstd = saved.rstd.const_data_ptr<float>(),
       .grad_x = dx.mutable_data_ptr(),
       .grad_weight = wanted ? grad_weight.mutable_data_ptr<float>() : nullptr,
       .partial = wanted ? partial.mutable_data_ptr<float>() : nullptr,
       .rows = rows,
       .dim = dim,
       .dtype = kernel_dtype(dx)},
      current_stream());
  return dx;
}

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& delta,
                               const std::optional<at::Tensor>&, Parameter* weight, double eps) {
    const auto forward_on = x.is_cuda() ? rms_norm_forward_cuda : rms_norm_forward_cpu;
    const RmsNormed out = forward_on(dense(x), delta ? dense(*delta) : at::Tensor(),
                                     value_of(*weight, x).view({x.size(1)}), eps);
    context->save_for_backward({out.sum, out.rstd});
    context->saved_data["delta"] = delta.has_value();
    context->set_materialize_grads(false);
    keep(context, "weight", weight);
    return {delta ? out.sum : x, out.y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool has_delta = context->saved_data.at("delta").toBool();
    at::Tensor dx = grads[0];
    if (grads[1].defined()) {
      Parameter& weight = kept(context, "weight");
      const auto backward_on = saved[0].is_cuda() ? rms_norm_backward_cuda : rms_norm_backward_cpu;
      dx = backward_on({.grad_y = dense(grads[1]), .grad_sum = dx.defined() ? dense(dx) : dx},
                       {.sum = saved[0], .y = {}, .rstd = saved[1]},
                       value_of(weight, saved[0]).view({saved[0].size(1)}),
                       wanted_gradient(weight, saved[0]));
    }
    return {dx, has_delta ? dx : at::Tensor(), {}, {}, {}};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_MD,
                                               const std::optional<at::Tensor>& delta_MD,
                                               Parameter& weight, double eps) {
  DSTRAIN_CHECK(x_MD.dim() == 2 && value_of(weight, x_MD).numel() == x_MD.size(1),
                fmt::format("RMS norm: x {}, weight {}", shape_of(x_MD), shape_of(weight.value)));
  DSTRAIN_CHECK(!delta_MD || (delta_MD->sizes() == x_MD.sizes() &&
                              delta_MD->scalar_type() == x_MD.scalar_type()),
                fmt::format("RMS norm: x {}, delta {} or another dtype", shape_of(x_MD),
                            shape_of(*delta_MD)));
  const bool graph = x_MD.requires_grad() || (delta_MD && delta_MD->requires_grad());
  variable_list out = AddRmsNorm::apply(
      x_MD, delta_MD, graph ? std::nullopt : anchor_for(x_MD, weight.trainable), &weight, eps);
  return {out[0], out[1]};
}

}  // namespace dstrain::ops
