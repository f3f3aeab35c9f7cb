#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dstrain {

/// sum[0] += a 64-bit hash of the bits of x, dense and of 2 bytes an element at least; `sum` int64
/// on the device of x. A word of x at another place, or under another `salt`, adds another number.
/// The numbers are summed with wrap-around, so equal tensors have equal hashes on any device and in
/// any number of threads, and one wrong bit always changes it. One kernel on the current stream.
void add_hash(const at::Tensor& x, std::uint64_t salt, const at::Tensor& sum);

}  // namespace dstrain
