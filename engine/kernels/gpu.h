#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "engine/base/gpu_limits.h"
#include "engine/kernels/dtype.h"

/// What the current GPU lets kernels use: each launch that needs more has another way, or says so.
namespace dstrain::kernels::cuda {

/// Shared memory that a block has on every GPU from 7.5 on: who may need more has another way.
inline constexpr std::size_t kMinSharedBlock = 64 * 1024;

/// Limits of the current device, lowered by DSTRAIN_GPU_AS ("8.6"), by which a newer GPU tests what
/// older ones do; those of 9.0 where there is no GPU.
[[nodiscard]] const GpuLimits& gpu_limits();

/// Whether the current GPU's tensor cores multiply numbers of this type, of 16 bits.
[[nodiscard]] inline bool multiplies(DType dtype) {
  return dtype == DType::f16 || (dtype == DType::bf16 && gpu_limits().bf16_products);
}

/// Lets a kernel have `bytes` of dynamic shared memory. Error{internal} with the kernel's `name`,
/// bytes and limit where the GPU, as it is lowered, has less.
void allow_shared_bytes(const void* kernel, const char* name, std::size_t bytes);

template <typename Kernel>
void allow_shared(Kernel* kernel, const char* name, std::size_t bytes) {
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), name, bytes);
}

}  // namespace dstrain::kernels::cuda
