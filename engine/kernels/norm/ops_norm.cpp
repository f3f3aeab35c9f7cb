#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/linear/needs_context.h"
#include "engine/kernels/linear/output_gradient.h"
#include "engine/kernels/norm/kernels.h"
#include "engine/kernels/norm/norm_maxima.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LayerNormed {
  at::Tensor sum, y, mean, rstd;
};

LayerNormed layer_norm_forward_cpu(const at::Tensor& x, const at::Tensor& delta,
                                   const at::Tensor& weight, const at::Tensor& bias, double eps,
                                   const at::Tensor&) {
  at::Tensor sum = delta.defined() ? x + delta : x;
  const auto [y, mean, rstd] = at::native_layer_norm(
      sum.to(at::kFloat), {x.size(1)}, weight.to(at::kFloat), bias.to(at::kFloat), eps);
  return {sum, y.to(x.scalar_type()), mean, rstd};
}

LayerNormed layer_norm_forward_cuda(const at::Tensor& x, const at::Tensor& delta,
                                    const at::Tensor& weight, const at::Tensor& bias, double eps,
                                    const at::Tensor& maxima) {
  LayerNormed out{.sum = delta.defined() ? at::empty_like(x) : x,
                  .y = at::empty_like(x),
                  .mean = scratch(x, {x.size(0)}),
                  .rstd = scratch(x, {x.size(0)})};
  const NormMaxima largest(x, maxima);
  kernels::cuda::add_layer_norm({.x = x.const_data_ptr(),
                                 .delta = delta.defined() ? delta.const_data_ptr() : nullptr,
                                 .weight = weight.const_data_ptr(),
                                 .bias = bias.const_data_ptr(),
                                 .sum = delta.defined() ? out.sum.mutable_data_ptr() : nullptr,
                                 .y = out.y.mutable_data_ptr(),
                                 .mean = out.mean.mutable_data_ptr<float>(),
                                 .rstd = out.rstd.mutable_data_ptr<float>(),
                                 .rows = x.size(0),
                                 .dim = x.size(1),
                                 .eps = static_cast<float>(eps),
                                 .dtype = kernel_dtype(x),
                                 .maxima = largest.parts()},
                                current_stream());
  largest.finish();
  return out;
}

struct LayerNormGradients {
  at::Tensor grad_y, grad_sum;  ///< grad_sum may be undefined
  GradientNeeds needs = {};     ///< of the input's gradient
};

struct ParameterGradients {
  GradientSink weight, bias;
};

at::Tensor layer_norm_backward_cpu(const LayerNormGradients& grads, const LayerNormed& saved,
                                   const at::Tensor& weight, const ParameterGradients& into) {
  const at::Tensor sum = saved.sum.to(at::kFloat), scale = weight.to(at::kFloat);
  auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      grads.grad_y.to(at::kFloat), sum, {sum.size(1)}, saved.mean, saved.rstd, scale, scale,
      {true, into.weight.wanted(), into.bias.wanted()});
  if (into.weight.wanted()) into.weight.add(dweight);
  if (into.bias.wanted()) into.bias.add(dbias);
  if (grads.grad_sum.defined()) dx.add_(grads.grad_sum);
  const at::Tensor rounded = dx.to(saved.sum.scalar_type());
  if (grads.needs.column_sums)
    set_findings(rounded, {.column_sums = rounded.sum(0, /*keepdim=*/true, at::kFloat)});
  return rounded;
}

at::Tensor layer_norm_backward_cuda(const LayerNormGradients& grads, const LayerNormed& saved,
                                    const at::Tensor& weight, const ParameterGradients& into) {
  const std::int64_t rows = saved.sum.size(0), dim = saved.sum.size(1);
  at::Tensor dx = at::empty_like(saved.sum), partial;
  // The kernel computes both or neither; where one is frozen, its sum goes nowhere.
  const bool wanted = into.weight.wanted() || into.bias.wanted();
  at::Tensor nowhere;
  if (into.weight.wanted() != into.bias.wanted()) nowhere = scratch(dx, {dim});
  const auto target = [&](const GradientSink& sink) {
    return sink.wanted() ? sink.vector() : fp32_or_null(nowhere);
  };
  if (wanted) partial = scratch(dx, {kernels::norm_partials(rows), 2, dim});
  GradientFindings found;
  if (wanted && grads.needs.column_sums && rows > 0 && dim <= kernels::kMaxNormSumsDim)
    found.column_sums = scratch(dx, {kernels::norm_partials(rows), dim});
  if (grads.needs.maxima && rows > 0) found.maxima = scratch(dx, {kernels::kAbsMaxPartials});
  kernels::cuda::add_layer_norm_backward(
      {.sum = saved.sum.const_data_ptr(),
       .weight = weight.const_data_ptr(),
       .grad_y = grads.grad_y.const_data_ptr(),
       .grad_sum = grads.grad_sum.defined() ? grads.grad_sum.const_data_ptr() : nullptr,
       .mean = saved.mean.const_data_ptr<float>(),
       .rstd = saved.rstd.const_data_ptr<float>(),
       .grad_x = dx.mutable_data_ptr(),
       .grad_weight = target(into.weight),
       .grad_bias = target(into.bias),
       .partial = wanted ? partial.mutable_data_ptr<float>() : nullptr,
       .rows = rows,
       .dim = dim,
       .dtype = kernel_dtype(dx),
       .grad_x_sums = fp32_or_null(found.column_sums),
       .maxima = fp32_or_null(found.maxima)},
      current_stream());
  set_findings(dx, found);
  return dx;
}

struct AddLayerNorm : torch::autograd::Function<AddLayerNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& delta,
                               const std::optional<at::Tensor>&, const Known& found,
                               Parameter* weight, Parameter* bias, double eps) {
    const auto forward_on = x.is_cuda() ? layer_norm_forward_cuda : layer_norm_forward_cpu;
    const LayerNormed out = forward_on(dense(x), delta ? dense(*delta) : at::Tensor(),
                                       value_of(*weight, x), value_of(*bias, x), eps, found.maxima);
    context->save_for_backward({out.sum, out.mean, out.rstd});
    context->saved_data["delta"] = delta.has_value();
    keep_needs(context, delta ? needs_of(*delta) : GradientNeeds{});
    context->set_materialize_grads(false);
    keep(context, "weight", weight);
    keep(context, "bias", bias);
    return {delta ? out.sum : x, out.y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool has_delta = context->saved_data.at("delta").toBool();
    at::Tensor dx = grads[0];
    if (grads[1].defined()) {
      Parameter &weight = kept(context, "weight"), &bias = kept(context, "bias");
      const auto backward_on =
          saved[0].is_cuda() ? layer_norm_backward_cuda : layer_norm_backward_cpu;
      dx = backward_on({.grad_y = dense(grads[1]),
                        .grad_sum = dx.defined() ? dense(dx) : dx,
                        .needs = kept_needs(context)},
                       {.sum = saved[0], .y = {}, .mean = saved[1], .rstd = saved[2]},
                       value_of(weight, saved[0]),
                       {.weight = {weight, saved[0]}, .bias = {bias, saved[0]}});
    }
    return {dx, has_delta ? dx : at::Tensor(), {}, {}, {}, {}, {}};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x_MD,
                                                 const std::optional<at::Tensor>& delta_MD,
                                                 Parameter& weight, Parameter& bias, double eps,
                                                 const at::Tensor& maxima) {
  DSTRAIN_CHECK(x_MD.dim() == 2 && value_of(weight, x_MD).numel() == x_MD.size(1) &&
                    value_of(bias, x_MD).numel() == x_MD.size(1),
                fmt::format("layer norm: x {}, weight {}, bias {}", shape_of(x_MD),
                            shape_of(weight.value), shape_of(bias.value)));
  DSTRAIN_CHECK(!delta_MD || (delta_MD->sizes() == x_MD.sizes() &&
                              delta_MD->scalar_type() == x_MD.scalar_type()),
                fmt::format("layer norm: x {}, delta {} or another dtype", shape_of(x_MD),
                            shape_of(*delta_MD)));
  const bool graph = x_MD.requires_grad() || (delta_MD && delta_MD->requires_grad());
  variable_list out = AddLayerNorm::apply(
      x_MD, delta_MD, graph ? std::nullopt : anchor_for(x_MD, weight.trainable || bias.trainable),
      Known{.maxima = maxima}, &weight, &bias, eps);
  return {out[0], out[1]};
}

}  // namespace dstrain::ops
