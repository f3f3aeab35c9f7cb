#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace at {
class Tensor;
}

namespace dstrain {

/// Uninitialised contiguous host tensor: page-locked where `device` is a GPU, so that copies to and
/// from it run beside computation; ordinary memory for the CPU. Page-locked memory is kept by
/// LibTorch's host allocator for reuse.
[[nodiscard]] at::Tensor host_tensor(c10::IntArrayRef shape, c10::ScalarType dtype,
                                     c10::Device device);

}  // namespace dstrain
