#include "engine/kernels/gradient_sink.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

bool may_hold(const Parameter& parameter, at::ScalarType type) {
  return type == at::kFloat || (type == at::kBFloat16 && parameter.shape.size() >= 2);
}

}  // namespace

float* Fp32Sum::data() const { return fp32_or_null(sum_); }

void Fp32Sum::finish() const {
  if (!sum_.is_same(gradient_)) gradient_.add_(sum_);
}

const at::Tensor& GradientSink::checked() const {
  const at::Tensor& gradient = parameter_.gradient;
  DSTRAIN_CHECK(gradient.defined(),
                fmt::format("parameter '{}' has no gradient in backward", name_of(parameter_)));
  DSTRAIN_CHECK(
      may_hold(parameter_, gradient.scalar_type()) && gradient.device() == device_ &&
          gradient.is_contiguous() && gradient.numel() == parameter_.numel(),
      fmt::format(
          "gradient {} of parameter '{}' is not dense of its size on its device, in fp32 or "
          "as a matrix in bf16",
          shape_of(gradient), name_of(parameter_)));
  return gradient;
}

GradientSink::Target GradientSink::open() const {
  const Target target{.tensor = checked(), .add = !empty()};
  mark_added();
  return target;
}

at::Tensor GradientSink::any_format() const {
  if (!wanted()) return {};
  const Target target = open();
  if (!target.add) target.tensor.zero_();
  return target.tensor;
}

float* GradientSink::vector() const { return fp32_or_null(any_format()); }

Fp32Sum GradientSink::fp32(bool can_write) const {
  if (!wanted()) return {};
  const Target target = open();
  const bool wide = target.tensor.scalar_type() == at::kFloat;
  Fp32Sum made;
  made.gradient_ = made.sum_ = target.tensor;
  made.write_ = wide && can_write && !target.add;
  if (!target.add && !made.write_) target.tensor.zero_();
  if (!wide)
    made.sum_ = at::zeros(target.tensor.sizes(), target.tensor.options().dtype(at::kFloat));
  return made;
}

void GradientSink::product(const at::Tensor& a, const at::Tensor& b, ProductOptions options) const {
  if (!wanted()) return;
  const Target target = open();
  options.alpha *= parameter_.output_scale;
  options.add = target.add;
  multiply(a, b, target.tensor.view({a.size(0), b.size(1)}), options);
}

bool product_and_rows(const GradientSink& weight, const GradientSink& bias, const at::Tensor& x,
                      const at::Tensor& dy) {
  if (!dy.is_cuda() || weight.parameter_.output_scale != 1) return false;
  const at::Tensor &of_weight = weight.checked(), &of_bias = bias.checked();
  const at::Tensor sums = bias.empty() ? of_bias : scratch(dy, {dy.size(1)});
  if (!multiply_and_sum(dy.t(), x, of_weight.view({dy.size(1), x.size(1)}), sums, !weight.empty()))
    return false;
  if (!bias.empty()) of_bias.add_(sums);
  weight.mark_added();
  bias.mark_added();
  return true;
}

void GradientSink::rows(const at::Tensor& dy) const {
  if (!wanted()) return;
  if (!dy.is_cuda()) return add(dy.sum(0, false, at::kFloat));
  const std::int64_t rows = dy.size(0), cols = dy.size(1);
  kernels::cuda::column_sum(
      {.x = dy.const_data_ptr(),
       .sum = vector(),
       .partial =
           scratch(dy, {kernels::column_partials(rows, cols), cols}).mutable_data_ptr<float>(),
       .rows = rows,
       .cols = cols,
       .dtype = kernel_dtype(dy)},
      current_stream());
}

void GradientSink::parts(const at::Tensor& sums) const {
  if (!wanted()) return;
  if (!sums.is_cuda()) return add(sums.sum(0));
  const Fp32Sum sum = fp32();
  kernels::cuda::partial_sums({.partial = sums.const_data_ptr<float>(),
                               .sum = sum.data(),
                               .rows = sums.size(0),
                               .cols = sums.size(1)},
                              current_stream());
  sum.finish();
}

void GradientSink::add(const at::Tensor& sum) const {
  if (!wanted()) return;
  const Target target = open();
  const at::Tensor into = target.tensor.view(sum.sizes());
  target.add ? into.add_(sum) : into.copy_(sum);
}

void GradientSink::defer(std::function<void()> product) const {
  parameter_.later->push_back(std::move(product));
}

bool settle_gradient(Parameter& parameter) {
  const GradientState state = std::exchange(parameter.gradient_state, GradientState::held);
  if (state == GradientState::empty) parameter.gradient.zero_();
  return state == GradientState::added;
}

}  // namespace dstrain::ops
