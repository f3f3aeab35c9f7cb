#include "engine/kernels/linear/linear_map.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/linear/output_gradient.h"
#include "engine/kernels/nf4/nf4.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using kernels::Fp8Format;

/// Longest sum of an FP8 product of gradients that may be kept shorter than fp32: with 13 bits its
/// rounding is far below that of its codes.
constexpr std::int64_t kMaxShortSum = 2560;

/// The elements of x without what is known of them, which a view that autograd sees would hold.
at::Tensor bare(const at::Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return x.view(x.sizes());
}

}  // namespace

at::Tensor matrix_of(const Parameter& weight, const at::Tensor& x) {
  const at::Tensor& value = value_of(weight, x);
  if (weight.nf4) return decode_nf4(weight, x);
  return value.view({value.size(0), -1});
}

std::int64_t columns_of(const Parameter& weight) { return weight.numel() / weight.shape.front(); }

void check_linear(const at::Tensor& x, const Parameter& weight, const Parameter* bias) {
  (void)value_of(weight, x);
  DSTRAIN_CHECK(x.dim() == 2 && columns_of(weight) == x.size(1) &&
                    (bias == nullptr || value_of(*bias, x).numel() == weight.shape.front()),
                fmt::format("linear: x {}, weight {}, bias {}", shape_of(x), shape_of(weight.value),
                            bias == nullptr ? "none" : shape_of(bias->value)));
}

LinearOutput empty_output(const at::Tensor& x, std::int64_t rows, const Parameter& weight,
                          const Parameter* bias) {
  LinearOutput out{.y = at::empty({rows, weight.shape.front()}, x.options())};
  set_needs(out.y, {.column_sums = bias != nullptr && bias->trainable,
                    .maxima = runs_in_fp8(weight, x) && x.is_cuda()});
  return out;
}

void multiply_rows(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                   const at::Tensor& y, bool add) {
  multiply(x, matrix_of(weight, x).t(), y,
           {.alpha = weight.output_scale,
            .add = add,
            .bias = bias == nullptr ? at::Tensor() : value_of(*bias, x)});
}

Keep keep_hidden(Keep keep, const Parameter& weight, const at::Tensor& x) {
  return runs_in_fp8(weight, x) ? Keep::nothing : keep;
}

LinearOutput apply_linear(const Measured& x, Parameter& weight, Parameter* bias, Keep keep,
                          const at::Tensor& sum) {
  LinearOutput out =
      sum.defined() ? LinearOutput{.y = sum} : empty_output(x.rows, x.rows.size(0), weight, bias);
  const bool keep_x = weight.trainable && keep == Keep::input;
  if (!runs_in_fp8(weight, x.rows)) {
    multiply_rows(x.rows, weight, bias, out.y, sum.defined());
    if (keep_x) out.kept = x.rows;
    return out;
  }
  const Quantized x8 =
      quantize(x.rows, Fp8Format::e4m3, keep_x ? Sides::both : Sides::rows, {.maxima = x.maxima});
  const Quantized weight8 = quantize_weight(weight, matrix_of(weight, x.rows), Sides::rows);
  multiply(x8.rows, weight8.rows.t(), out.y,
           {.alpha = weight.output_scale,
            .add = sum.defined(),
            .bias = bias == nullptr ? at::Tensor() : value_of(*bias, x.rows),
            .a_scale = x8.scale,
            .b_scale = weight8.scale,
            .fast = true});
  out.kept = x8.columns;
  out.scale = x8.scale;
  out.weight_scale = weight8.scale;
  return out;
}

LinearGradient::LinearGradient(const at::Tensor& dy, Parameter& weight, Parameter* bias,
                               bool for_input)
    : dy_(dy.contiguous()), weight_(weight), bias_(bias) {
  const GradientFindings found = findings_of(dy_);
  column_sums_ = found.column_sums;
  if (!runs_in_fp8(weight, dy) || !(for_input || weight.trainable)) return;
  const Sides sides = !for_input ? Sides::columns : weight.trainable ? Sides::both : Sides::rows;
  const Known known{.maxima = found.maxima};
  if (dy_.is_cuda() && trains_bias() && !column_sums_.defined()) {
    fp8_ = quantize_and_sum(dy_, Fp8Format::e5m2, sides, known);
    column_sums_ = fp8_.sums;
  } else {
    fp8_ = quantize(dy_, Fp8Format::e5m2, sides, known);
  }
}

LinearGradient::LinearGradient(Quantized dy, const at::Tensor& like, Parameter& weight)
    : dy_(at::empty({0}, like.options())), weight_(weight), fp8_(std::move(dy)) {}

at::Tensor LinearGradient::input(const at::Tensor& weight_scale, const at::Tensor& sum) const {
  const at::Tensor matrix = matrix_of(weight_, dy_);
  const std::int64_t rows = fp8_.rows.defined() ? fp8_.rows.size(0) : dy_.size(0);
  const bool add = sum.defined();
  at::Tensor dx = add ? sum : at::empty({rows, matrix.size(1)}, dy_.options());
  if (!fp8_.scale.defined()) {
    multiply(dy_, matrix, dx, {.alpha = weight_.output_scale, .add = add});
  } else {
    const Quantized weight8 = quantize_weight(weight_, matrix, Sides::columns, weight_scale);
    multiply(fp8_.rows, weight8.columns.t(), dx,
             {.alpha = weight_.output_scale,
              .add = add,
              .a_scale = fp8_.scale,
              .b_scale = weight8.scale,
              .fast = outputs() <= kMaxShortSum});
  }
  return dx;
}

void LinearGradient::add_to_parameters(const at::Tensor& kept, const at::Tensor& scale) const {
  const GradientSink to_weight(weight_, dy_);
  if (!to_weight.deferred()) return add_now(kept, scale);
  LinearGradient held = *this;
  if (trains_bias() && (column_sums_.defined() || fp8_.scale.defined())) {
    add_to_bias();
    held.bias_ = nullptr;
  }
  // Held is what the product reads: not what the input's gradient does, nor what is known of dy.
  held.column_sums_ = held.fp8_.rows = held.fp8_.sums = at::Tensor();
  held.dy_ = fp8_.scale.defined() ? at::empty({0}, dy_.options()) : bare(dy_);
  to_weight.defer([held, x = kept.detach(), scale] {  // without the graph behind x
    held.add_now(x, scale);
  });
}

void LinearGradient::add_to_bias() const {
  const GradientSink to_bias(*bias_, dy_);
  column_sums_.defined() ? to_bias.parts(column_sums_) : to_bias.rows(dy_);
}

void LinearGradient::add_now(const at::Tensor& kept, const at::Tensor& scale) const {
  const bool eight_bits = fp8_.scale.defined();
  const GradientSink to_weight(weight_, dy_);
  if (trains_bias()) {
    const bool together = to_weight.wanted() && !eight_bits && !column_sums_.defined();
    if (together && product_and_rows(to_weight, {*bias_, dy_}, kept, dy_)) return;
    add_to_bias();
  }
  if (!to_weight.wanted()) return;
  if (eight_bits) {
    to_weight.product(fp8_.columns, kept.t(), {.a_scale = fp8_.scale, .b_scale = scale});
  } else {
    to_weight.product(dy_.t(), kept);
  }
}

}  // namespace dstrain::ops
