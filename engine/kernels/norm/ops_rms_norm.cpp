#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
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

struct RmsNormed {
  at::Tensor sum, y, rstd;
};

/// The weight as the kernels read it, and what it holds.
struct NormWeight {
  at::Tensor value;  ///< [D]
  RmsWeight holds = RmsWeight::factor;

  [[nodiscard]] bool less_one() const { return holds == RmsWeight::less_one; }
  /// In fp32.
  [[nodiscard]] at::Tensor factor() const {
    const at::Tensor wide = value.to(at::kFloat);
    return less_one() ? wide + 1 : wide;
  }
};

RmsNormed rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& delta,
                               const NormWeight& weight, double eps, const at::Tensor&) {
  const at::Tensor sum = delta.defined() ? x + delta : x, wide = sum.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(wide.pow(2).mean(-1) + eps);
  const at::Tensor normed = wide * rstd.unsqueeze(1);
  if (weight.less_one()) return {sum, (normed * weight.factor()).to(x.scalar_type()), rstd};
  return {sum, weight.value * normed.to(x.scalar_type()), rstd};
}

RmsNormed rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& delta,
                                const NormWeight& weight, double eps, const at::Tensor& maxima) {
  RmsNormed out{.sum = delta.defined() ? at::empty_like(x) : x,
                .y = at::empty_like(x),
                .rstd = scratch(x, {x.size(0)})};
  const NormMaxima largest(x, maxima);
  kernels::cuda::add_rms_norm({.x = x.const_data_ptr(),
                               .delta = delta.defined() ? delta.const_data_ptr() : nullptr,
                               .weight = weight.value.const_data_ptr(),
                               .sum = delta.defined() ? out.sum.mutable_data_ptr() : nullptr,
                               .y = out.y.mutable_data_ptr(),
                               .rstd = out.rstd.mutable_data_ptr<float>(),
                               .rows = x.size(0),
                               .dim = x.size(1),
                               .eps = static_cast<float>(eps),
                               .dtype = kernel_dtype(x),
                               .maxima = largest.parts(),
                               .less_one = weight.less_one()},
                              current_stream());
  largest.finish();
  return out;
}

struct RmsNormGradients {
  at::Tensor grad_y, grad_sum;  ///< grad_sum may be undefined
  /// Needs of the input's gradient; no column sums, as linear maps behind RMS norms have
  /// no bias.
  GradientNeeds needs = {};
};

at::Tensor rms_norm_backward_cpu(const RmsNormGradients& grads, const RmsNormed& saved,
                                 const NormWeight& weight, const GradientSink& grad_weight) {
  const at::Tensor rstd = saved.rstd.unsqueeze(1), x_hat = saved.sum.to(at::kFloat) * rstd;
  const at::Tensor grad_y = grads.grad_y.to(at::kFloat), scaled = grad_y * weight.factor();
  if (grad_weight.wanted()) grad_weight.add((grad_y * x_hat).sum(0));
  at::Tensor dx = rstd * (scaled - x_hat * (scaled * x_hat).mean(-1, true));
  if (grads.grad_sum.defined()) dx.add_(grads.grad_sum);
  return dx.to(saved.sum.scalar_type());
}

at::Tensor rms_norm_backward_cuda(const RmsNormGradients& grads, const RmsNormed& saved,
                                  const NormWeight& weight, const GradientSink& grad_weight) {
  const std::int64_t rows = saved.sum.size(0), dim = saved.sum.size(1);
  const bool wanted = grad_weight.wanted();
  at::Tensor dx = at::empty_like(saved.sum), partial;
  if (wanted) partial = scratch(dx, {kernels::norm_partials(rows), dim});
  GradientFindings found;
  if (grads.needs.maxima && rows > 0) found.maxima = scratch(dx, {kernels::kAbsMaxPartials});
  kernels::cuda::add_rms_norm_backward(
      {.sum = saved.sum.const_data_ptr(),
       .weight = weight.value.const_data_ptr(),
       .grad_y = grads.grad_y.const_data_ptr(),
       .grad_sum = grads.grad_sum.defined() ? grads.grad_sum.const_data_ptr() : nullptr,
       .rstd = saved.rstd.const_data_ptr<float>(),
       .grad_x = dx.mutable_data_ptr(),
       .grad_weight = grad_weight.vector(),
       .partial = wanted ? partial.mutable_data_ptr<float>() : nullptr,
       .rows = rows,
       .dim = dim,
       .dtype = kernel_dtype(dx),
       .maxima = fp32_or_null(found.maxima),
       .less_one = weight.less_one()},
      current_stream());
  set_findings(dx, found);
  return dx;
}

void keep_holds(AutogradContext* context, RmsWeight holds) {
  context->saved_data["holds"] = static_cast<std::int64_t>(holds);
}
/// The weight of `width` elements for inputs like `x`, as keep_holds has it.
NormWeight weight_for(AutogradContext* context, const Parameter& weight, const at::Tensor& x,
                      std::int64_t width) {
  return {.value = value_of(weight, x).view({width}),
          .holds = static_cast<RmsWeight>(context->saved_data.at("holds").toInt())};
}

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& delta,
                               const std::optional<at::Tensor>&, const Known& found,
                               Parameter* weight, double eps, RmsWeight holds) {
    keep_holds(context, holds);
    const auto forward_on = x.is_cuda() ? rms_norm_forward_cuda : rms_norm_forward_cpu;
    const RmsNormed out = forward_on(dense(x), delta ? dense(*delta) : at::Tensor(),
                                     weight_for(context, *weight, x, x.size(1)), eps, found.maxima);
    context->save_for_backward({out.sum, out.rstd});
    context->saved_data["delta"] = delta.has_value();
    keep_needs(context, delta ? needs_of(*delta) : GradientNeeds{});
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
      dx = backward_on({.grad_y = dense(grads[1]),
                        .grad_sum = dx.defined() ? dense(dx) : dx,
                        .needs = kept_needs(context)},
                       {.sum = saved[0], .y = {}, .rstd = saved[1]},
                       weight_for(context, weight, saved[0], saved[0].size(1)),
                       GradientSink(weight, saved[0]));
    }
    return {dx, has_delta ? dx : at::Tensor(), {}, {}, {}, {}, {}};
  }
};

/// Query heads (part 0) or key heads (1) of rows like qkv, [M, heads, head_dim]; a view.
at::Tensor heads_view(const at::Tensor& qkv, const AttentionShape& shape, int part) {
  const at::Tensor all = qkv.view({qkv.size(0), shape.heads + 2 * shape.kv_heads, shape.head_dim});
  return part == 0 ? all.narrow(1, 0, shape.heads) : all.narrow(1, shape.heads, shape.kv_heads);
}

/// A dense copy of them in rows of `width` elements: one head, or all of a token.
at::Tensor head_rows(const at::Tensor& qkv, const AttentionShape& shape, int part,
                     std::int64_t width) {
  return heads_view(qkv, shape, part).clone(at::MemoryFormat::Contiguous).view({-1, width});
}

struct NormQueryKey : torch::autograd::Function<NormQueryKey> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const std::optional<at::Tensor>&, const AttentionShape& shape,
                            Parameter* query_weight, Parameter* key_weight, double eps,
                            RmsWeight hold) {
    keep_holds(context, hold);
    const auto forward_on = qkv.is_cuda() ? rms_norm_forward_cuda : rms_norm_forward_cpu;
    Parameter* weights[] = {query_weight, key_weight};
    variable_list saved;
    for (int part = 0; part < 2; ++part) {
      const std::int64_t width = weights[part]->numel();
      const RmsNormed normed = forward_on(head_rows(qkv, shape, part, width), {},
                                          weight_for(context, *weights[part], qkv, width), eps, {});
      const at::Tensor heads = heads_view(qkv, shape, part);
      heads.copy_(normed.y.view(heads.sizes()));
      saved.insert(saved.end(), {normed.sum, normed.rstd});
    }
    context->mark_dirty({qkv});
    context->save_for_backward(saved);
    context->saved_data["shape"] =
        std::vector<std::int64_t>{shape.heads, shape.kv_heads, shape.head_dim};
    keep(context, "query", query_weight);
    keep(context, "key", key_weight);
    return qkv;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<std::int64_t> sizes = context->saved_data.at("shape").toIntVector();
    const AttentionShape shape{.heads = sizes[0], .kv_heads = sizes[1], .head_dim = sizes[2]};
    const at::Tensor grad = dense(grads[0]);
    const auto backward_on = grad.is_cuda() ? rms_norm_backward_cuda : rms_norm_backward_cpu;
    Parameter* weights[] = {&kept(context, "query"), &kept(context, "key")};
    at::Tensor dqkv = grad.clone();
    for (int part = 0; part < 2; ++part) {
      const std::size_t first = static_cast<std::size_t>(part) * 2;
      const at::Tensor heads = heads_view(dqkv, shape, part);
      const std::int64_t width = weights[part]->numel();
      heads.copy_(backward_on({.grad_y = head_rows(grad, shape, part, width), .grad_sum = {}},
                              {.sum = saved[first], .y = {}, .rstd = saved[first + 1]},
                              weight_for(context, *weights[part], grad, width),
                              GradientSink(*weights[part], grad))
                      .view(heads.sizes()));
    }
    return {dqkv, {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor norm_query_key(const at::Tensor& qkv, const AttentionShape& shape,
                          Parameter& query_weight, Parameter& key_weight, double eps,
                          RmsWeight hold) {
  const bool of_each =
      query_weight.numel() == shape.head_dim && key_weight.numel() == shape.head_dim;
  const bool of_all = query_weight.numel() == shape.width() &&
                      key_weight.numel() == shape.kv_heads * shape.head_dim;
  DSTRAIN_CHECK(qkv.dim() == 2 && qkv.is_contiguous() && qkv.size(1) == shape.qkv_width() &&
                    !shape.interleaved && (of_each || of_all),
                fmt::format("norm of query and key: qkv {}, heads {} and {} of {}", shape_of(qkv),
                            shape.heads, shape.kv_heads, shape.head_dim));
  const bool trainable = query_weight.trainable || key_weight.trainable;
  return NormQueryKey::apply(qkv, qkv.requires_grad() ? std::nullopt : anchor_for(qkv, trainable),
                             shape, &query_weight, &key_weight, eps, hold);
}

std::int64_t norm_query_key_saved_bytes(const AttentionShape& shape, std::int64_t rows,
                                        int element_bytes) {
  constexpr int kFloatBytes = 4;
  return rows * (shape.heads + shape.kv_heads) * (shape.head_dim * element_bytes + kFloatBytes);
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x_MD,
                                               const std::optional<at::Tensor>& delta_MD,
                                               Parameter& weight, double eps,
                                               const at::Tensor& maxima, RmsWeight holds) {
  DSTRAIN_CHECK(x_MD.dim() == 2 && value_of(weight, x_MD).numel() == x_MD.size(1),
                fmt::format("RMS norm: x {}, weight {}", shape_of(x_MD), shape_of(weight.value)));
  DSTRAIN_CHECK(!delta_MD || (delta_MD->sizes() == x_MD.sizes() &&
                              delta_MD->scalar_type() == x_MD.scalar_type()),
                fmt::format("RMS norm: x {}, delta {} or another dtype", shape_of(x_MD),
                            shape_of(*delta_MD)));
  const bool graph = x_MD.requires_grad() || (delta_MD && delta_MD->requires_grad());
  variable_list out =
      AddRmsNorm::apply(x_MD, delta_MD, graph ? std::nullopt : anchor_for(x_MD, weight.trainable),
                        Known{.maxima = maxima}, &weight, eps, holds);
  return {out[0], out[1]};
}

}  // namespace dstrain::ops
