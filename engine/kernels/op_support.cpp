#include "engine/kernels/op_support.h"

#include <ATen/cuda/CUDAContextLight.h>
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

const at::Tensor& gradient_of(const Parameter& parameter, const at::Tensor& x) {
  const at::Tensor& gradient = parameter.gradient;
  DSTRAIN_CHECK(gradient.defined(),
                fmt::format("parameter '{}' has no gradient in backward", name_of(parameter)));
  DSTRAIN_CHECK(
      gradient.scalar_type() == at::kFloat && gradient.device() == x.device() &&
          gradient.is_contiguous() && gradient.numel() == parameter.value.numel(),
      fmt::format("gradient {} of parameter '{}' is not dense fp32 of its size on its device",
                  shape_of(gradient), name_of(parameter)));
  return gradient;
}

std::optional<at::Tensor> anchor_for(const at::Tensor& x) {
  if (!c10::GradMode::is_enabled() || x.requires_grad()) return std::nullopt;
  return at::empty({0}, x.options()).requires_grad_(true);
}

at::Tensor scratch(const at::Tensor& x, at::IntArrayRef sizes) {
  return at::empty(sizes, x.options().dtype(at::kFloat));
}

namespace {

cudaDataType_t cublas_dtype(const at::Tensor& tensor) {
  switch (kernel_dtype(tensor)) {
    case kernels::DType::f32:
      return CUDA_R_32F;
    case kernels::DType::bf16:
      return CUDA_R_16BF;
    case kernels::DType::f16:
      return CUDA_R_16F;
  }
  throw Error(ErrorKind::internal, "unknown dtype");
}

void add_weight_gradient_cuda(const at::Tensor& x, const at::Tensor& dy,
                              const at::Tensor& gradient) {
  const int rows = static_cast<int>(x.size(0)), in = static_cast<int>(x.size(1)),
            out = static_cast<int>(dy.size(1));
  const float one = 1;
  // Column-major eyes see x as [in, rows], dy as [out, rows], the gradient as [in, out]. The
  // handle's math mode is ATen's, which allows no TF32 unless somebody asked for it.
  const cublasStatus_t status = cublasGemmEx(
      at::cuda::getCurrentCUDABlasHandle(), CUBLAS_OP_N, CUBLAS_OP_T, in, out, rows, &one,
      x.const_data_ptr(), cublas_dtype(x), in, dy.const_data_ptr(), cublas_dtype(dy), out, &one,
      gradient.mutable_data_ptr(), CUDA_R_32F, in, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ErrorKind::internal, fmt::format("weight gradient of {} and {}: {}", shape_of(x),
                                                 shape_of(dy), cublasGetStatusString(status)));
  }
}

}  // namespace

void add_weight_gradient(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& gradient) {
  if (x.size(0) == 0) return;
  if (x.is_cuda()) return add_weight_gradient_cuda(x, dy, gradient);
  gradient.view({dy.size(1), x.size(1)}).addmm_(dy.t().to(at::kFloat), x.to(at::kFloat));
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

}  // namespace dstrain::ops
