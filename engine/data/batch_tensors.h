#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <span>

namespace dstrain {

/// Row `row` of a host tensor whose rows have `size` elements.
template <class T>
std::span<T> row_of(const at::Tensor& tensor, std::int64_t row, std::int64_t size) {
  return {tensor.mutable_data_ptr<T>() + row * size, static_cast<std::size_t>(size)};
}

inline at::Tensor host_tensor(at::IntArrayRef sizes, at::ScalarType type, bool pinned) {
  return at::empty(sizes, at::TensorOptions(type).pinned_memory(pinned));
}

}  // namespace dstrain
