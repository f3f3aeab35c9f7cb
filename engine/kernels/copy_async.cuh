#pragma once

#include <cstdint>

#include "engine/kernels/tensor_cores.cuh"

/// Copies to shared memory that a thread does not wait for (PTX ISA, "cp.async"); compute
/// capability 7.5 copies at once.
namespace dstrain::kernels::cuda {

/// 16 bytes, zeros where not `inside`.
__device__ inline void copy_async(void* to, const void* from, bool inside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  *static_cast<uint4*>(to) = inside ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0));
#endif
}

/// Ends a group of copies.
__device__ inline void end_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Until all of this thread's groups but the newest `kGroups` are there.
template <int kGroups>
__device__ void wait_for_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

}  // namespace dstrain::kernels::cuda
