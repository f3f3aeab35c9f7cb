#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "engine/kernels/parameter.h"

namespace dstrain::test {

using Tensors = std::vector<at::Tensor>;

inline Tensors clones(const Tensors& tensors, at::Device device = at::kCPU) {
  Tensors copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.clone().to(device));
  return copies;
}

/// The size of a matrix.
struct RowsSize {
  std::int64_t rows, dim;
};

/// A parameter of these values, with gradients of zero.
inline Parameter parameter_of(const at::Tensor& value) {
  Parameter parameter;
  parameter.parts = {{"test", value.sizes().vec()}};
  parameter.shape = value.sizes().vec();
  parameter.value = value;
  parameter.gradient = at::zeros_like(value, at::kFloat);
  return parameter;
}

/// Repeatable normal numbers, rounded to dtype; the same on every device.
class Random {
 public:
  explicit Random(std::uint64_t seed, at::Device device = at::kCPU)
      : generator_(at::detail::createCPUGenerator(seed)), device_(device) {}

  at::Tensor operator()(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::randn(sizes, generator_).to(dtype).to(device_);
  }
  Parameter parameter(at::IntArrayRef sizes, at::ScalarType dtype) {
    return parameter_of((*this)(sizes, dtype));
  }

  [[nodiscard]] at::Device device() const { return device_; }

 private:
  at::Generator generator_;
  at::Device device_;
};

/// The same values as an autograd leaf.
inline at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().clone().requires_grad_(true);
}

/// The same values as a leaf in double on the host, for the plain computation beside it.
inline at::Tensor exact(const at::Tensor& tensor) {
  return tensor.detach().cpu().to(at::kDouble).requires_grad_(true);
}

inline at::Tensor indices(const std::vector<std::int64_t>& values) {
  return at::tensor(at::ArrayRef<std::int64_t>(values));
}

inline at::Tensor floats(const std::vector<float>& values) {
  return at::tensor(at::ArrayRef<float>(values));
}

}  // namespace dstrain::test
