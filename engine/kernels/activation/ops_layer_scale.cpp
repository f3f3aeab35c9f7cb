#include "engine/kernels/activation/ops_layer_scale.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/drop_context.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [B, rows of a sample, C].
at::Tensor sample_rows(const at::Tensor& x) { return x.view({x.size(0), -1, x.size(-1)}); }

/// sample_factors as [B, 1, 1]; undefined where the mask leaves none out.
at::Tensor factors_of(const at::Tensor& x, const DropMask& mask) {
  return mask.share == 0 ? at::Tensor() : sample_factors(x.size(0), mask, x).view({-1, 1, 1});
}

/// Scale times the factors, in fp32: [C] or [B, 1, C].
at::Tensor whole_scale(const at::Tensor& scale, const at::Tensor& factors) {
  const at::Tensor exact = scale.to(at::kFloat);
  return factors.defined() ? factors * exact : exact;
}

struct LayerScale : torch::autograd::Function<LayerScale> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& residual, const std::optional<at::Tensor>&,
                            Parameter* scale, const DropMask& mask) {
    const at::Tensor x = dense(input);
    context->save_for_backward({scale->trainable ? x : at::Tensor()});
    keep(context, "scale", scale);
    context->saved_data["drops"] = mask.share > 0;
    if (mask.share > 0) keep_mask(context, mask);
    const at::Tensor factors = whole_scale(value_of(*scale, x), factors_of(x, mask));
    at::Tensor y = at::empty_like(x);
    at::Tensor rows = sample_rows(y);
    at::addcmul_out(rows, sample_rows(dense(residual)), sample_rows(x), factors);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor dy = dense(grads[0]), x = context->get_saved_variables()[0];
    Parameter& scale = kept(context, "scale");
    const DropMask mask =
        context->saved_data.at("drops").toBool() ? kept_mask(context) : DropMask{};
    const at::Tensor factors = factors_of(dy, mask);
    if (x.defined()) {
      at::Tensor products = sample_rows(dy).to(at::kFloat) * sample_rows(x);
      if (factors.defined()) products.mul_(factors);
      GradientSink(scale, dy).add(products.sum(at::IntArrayRef({0, 1})));
    }
    at::Tensor dx = at::empty_like(dy);
    at::Tensor rows = sample_rows(dx);
    at::mul_out(rows, sample_rows(dy), whole_scale(value_of(scale, dy), factors));
    return {dx, context->needs_input_grad(1) ? dy : at::Tensor(), {}, {}, {}};
  }
};

at::Tensor scaled(const at::Tensor& x, const at::Tensor& scale) {
  at::Tensor y = at::empty_like(x);
  if (!x.is_cuda()) {
    at::mul_out(y, x, scale.to(at::kFloat));
    return y;
  }
  kernels::cuda::column_scale({.x = x.const_data_ptr(),
                               .scale = scale.const_data_ptr(),
                               .y = y.mutable_data_ptr(),
                               .rows = x.size(0),
                               .cols = x.size(1),
                               .dtype = kernel_dtype(x)},
                              current_stream());
  return y;
}

struct ScaleColumns : torch::autograd::Function<ScaleColumns> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, Parameter* scale) {
    const at::Tensor x = dense(input);
    context->save_for_backward({scale->trainable ? x : at::Tensor()});
    keep(context, "scale", scale);
    return scaled(x, value_of(*scale, x));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor dy = dense(grads[0]), x = context->get_saved_variables()[0];
    Parameter& scale = kept(context, "scale");
    const at::Tensor& value = value_of(scale, dy);
    if (!x.defined()) return {scaled(dy, value), {}, {}};
    const GradientSink sink(scale, dy);
    if (!dy.is_cuda()) {
      sink.add((dy.to(at::kFloat) * x).sum(0));
      return {scaled(dy, value), {}, {}};
    }
    at::Tensor dx = at::empty_like(dy);
    const at::Tensor partial =
        scratch(dy, {kernels::column_partials(dy.size(0), dy.size(1)), dy.size(1)});
    kernels::cuda::column_scale_backward({.x = x.const_data_ptr(),
                                          .scale = value.const_data_ptr(),
                                          .grad_y = dy.const_data_ptr(),
                                          .grad_x = dx.mutable_data_ptr(),
                                          .grad_scale = sink.vector(),
                                          .partial = partial.mutable_data_ptr<float>(),
                                          .rows = dy.size(0),
                                          .cols = dy.size(1),
                                          .dtype = kernel_dtype(dy)},
                                         current_stream());
    return {dx, {}, {}};
  }
};

}  // namespace

at::Tensor scale_columns(const at::Tensor& x, Parameter& scale) {
  DSTRAIN_CHECK(x.dim() == 2 && is_vector(value_of(scale, x), x.size(1), x.scalar_type(), x),
                fmt::format("scale_columns: x {}, scale {}", shape_of(x), shape_of(scale.value)));
  return ScaleColumns::apply(x, anchor_for(x, scale.trainable), &scale);
}

at::Tensor layer_scale(const at::Tensor& x, Parameter& scale, const DropMask& mask,
                       const at::Tensor& residual) {
  DSTRAIN_CHECK(x.dim() >= 2 && residual.sizes() == x.sizes() &&
                    is_vector(value_of(scale, x), x.size(-1), x.scalar_type(), x),
                fmt::format("layer_scale: x {}, residual {}, scale {}", shape_of(x),
                            shape_of(residual), shape_of(scale.value)));
  return LayerScale::apply(x, residual, anchor_for(x, scale.trainable), &scale, mask);
}

}  // namespace dstrain::ops
