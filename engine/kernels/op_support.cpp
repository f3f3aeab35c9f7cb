#include "engine/kernels/op_support.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/linear/gemm.h"

namespace dstrain::ops {

kernels::DType kernel_dtype(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return kernels::DType::f32;
  if (tensor.scalar_type() == at::kBFloat16) return kernels::DType::bf16;
  if (tensor.scalar_type() == at::kHalf) return kernels::DType::f16;
  throw Error(ErrorKind::internal,
              fmt::format("operator on {}", c10::toString(tensor.scalar_type())),
              "use fp32, bf16 or fp16");
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

at::Tensor dense(const at::Tensor& tensor) { return tensor.contiguous(); }

bool is_vector(const at::Tensor& tensor, std::int64_t size, at::ScalarType dtype,
               const at::Tensor& like) {
  return tensor.dim() == 1 && tensor.size(0) == size && tensor.scalar_type() == dtype &&
         tensor.is_contiguous() && tensor.device() == like.device();
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

namespace {

const std::string& name_of(const Parameter& parameter) {
  static const std::string unnamed = "(unnamed)";
  return parameter.parts.empty() ? unnamed : parameter.parts.front().name;
}

}  // namespace

const at::Tensor& value_of(const Parameter& parameter, const at::Tensor& x) {
  const at::Tensor& value = parameter.value;
  DSTRAIN_CHECK(value.defined(),
                fmt::format("parameter '{}' is used while released", name_of(parameter)));
  DSTRAIN_CHECK(
      value.scalar_type() == x.scalar_type() && value.device() == x.device() &&
          value.is_contiguous(),
      fmt::format("parameter '{}' {} differs from its input in dtype or device, or is not dense",
                  name_of(parameter), shape_of(value)));
  return value;
}

namespace {

const at::Tensor& checked_gradient(Parameter& parameter, const at::Tensor& x) {
  const at::Tensor& gradient = parameter.gradient;
  parameter.gradient_changed = true;
  DSTRAIN_CHECK(gradient.defined(),
                fmt::format("parameter '{}' has no gradient in backward", name_of(parameter)));
  DSTRAIN_CHECK(
      (gradient.scalar_type() == at::kFloat ||
       (gradient.scalar_type() == at::kBFloat16 && parameter.shape.size() >= 2)) &&
          gradient.device() == x.device() && gradient.is_contiguous() &&
          gradient.numel() == parameter.numel(),
      fmt::format(
          "gradient {} of parameter '{}' is not dense of its size on its device, in fp32 or "
          "as a matrix in bf16",
          shape_of(gradient), name_of(parameter)));
  return gradient;
}

}  // namespace

const at::Tensor& gradient_of(Parameter& parameter, const at::Tensor& x) {
  const at::Tensor& gradient = checked_gradient(parameter, x);
  if (std::exchange(parameter.gradient_empty, false)) gradient.zero_();
  return gradient;
}

at::Tensor wanted_gradient(Parameter& parameter, const at::Tensor& x) {
  return parameter.trainable ? gradient_of(parameter, x) : at::Tensor();
}

GradientTarget gradient_target(Parameter& parameter, const at::Tensor& x) {
  const at::Tensor& gradient = checked_gradient(parameter, x);
  return {.tensor = gradient, .add = !std::exchange(parameter.gradient_empty, false)};
}

WantedTarget wanted_target(Parameter& parameter, const at::Tensor& x) {
  if (!parameter.trainable) return {};
  const GradientTarget target = gradient_target(parameter, x);
  return {.data = target.tensor.mutable_data_ptr<float>(), .write = !target.add};
}

Fp32Gradient::Fp32Gradient(Parameter& parameter, const at::Tensor& x)
    : gradient_(gradient_of(parameter, x)),
      sum_(gradient_.scalar_type() == at::kFloat
               ? gradient_
               : at::zeros(gradient_.sizes(), gradient_.options().dtype(at::kFloat))) {}

void Fp32Gradient::finish() const {
  if (!sum_.is_same(gradient_)) gradient_.add_(sum_);
}

std::optional<at::Tensor> anchor_for(const at::Tensor& x, bool any_trainable) {
  if (!any_trainable || !c10::GradMode::is_enabled() || x.requires_grad()) return std::nullopt;
  return at::empty({0}, x.options()).requires_grad_(true);
}

at::Tensor scratch(const at::Tensor& x, at::IntArrayRef sizes) {
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

float* fp32_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

void add_weight_gradient(const at::Tensor& x, const at::Tensor& dy, Parameter& weight) {
  const GradientTarget target = gradient_target(weight, x);
  multiply(dy.t(), x, target.tensor.view({dy.size(1), x.size(1)}),
           {.alpha = weight.output_scale, .add = target.add});
}

void add_bias_gradient(const at::Tensor& dy, const at::Tensor& gradient) {
  if (!dy.is_cuda()) {
    gradient.add_(dy.sum(0, false, at::kFloat));
    return;
  }
  const std::int64_t rows = dy.size(0), cols = dy.size(1);
  kernels::cuda::column_sum(
      {.x = dy.const_data_ptr(),
       .sum = gradient.mutable_data_ptr<float>(),
       .partial =
           scratch(dy, {kernels::column_partials(rows, cols), cols}).mutable_data_ptr<float>(),
       .rows = rows,
       .cols = cols,
       .dtype = kernel_dtype(dy)},
      current_stream());
}

void add_partial_sums(const at::Tensor& sums, const at::Tensor& gradient) {
  if (!sums.is_cuda()) {
    gradient.add_(sums.sum(0));
    return;
  }
  kernels::cuda::partial_sums({.partial = sums.const_data_ptr<float>(),
                               .sum = gradient.mutable_data_ptr<float>(),
                               .rows = sums.size(0),
                               .cols = sums.size(1)},
                              current_stream());
}

}  // namespace dstrain::ops
