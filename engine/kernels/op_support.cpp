#include "engine/kernels/op_support.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include "engine/base/error.h"

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

bool at_16_bytes(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

const std::string& name_of(const Parameter& parameter) {
  static const std::string unnamed = "(unnamed)";
  return parameter.parts.empty() ? unnamed : parameter.parts.front().name;
}

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

}  // namespace dstrain::ops
