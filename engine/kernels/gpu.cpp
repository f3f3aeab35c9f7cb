#include "engine/kernels/gpu.h"

#include <fmt/format.h>

#include <vector>

#include "engine/base/error.h"
#include "engine/device/device_limits.h"

namespace dstrain::kernels::cuda {
namespace {

std::vector<GpuLimits> limits_of_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    count = 0;
  }
  std::vector<GpuLimits> all;
  for (int device = 0; device < count; ++device) all.push_back(limits_of_device(device));
  return all;
}

}  // namespace

const GpuLimits& gpu_limits() {
  static const GpuLimits hopper = limits_of_capability(9, 0);
  static const std::vector<GpuLimits> all = limits_of_devices();
  int device = 0;
  if (all.empty() || cudaGetDevice(&device) != cudaSuccess) return hopper;
  return all.at(static_cast<std::size_t>(device));
}

void allow_shared_bytes(const void* kernel, const char* name, std::size_t bytes) {
  const std::size_t limit = gpu_limits().shared_block;
  if (bytes > limit)
    throw Error(ErrorKind::internal,
                fmt::format("kernel {} needs {} bytes of shared memory, this GPU's blocks have {}",
                            name, bytes, limit));
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess)
    throw Error(ErrorKind::internal, fmt::format("kernel {}: {} bytes of shared memory: {}", name,
                                                 bytes, cudaGetErrorString(error)));
}

}  // namespace dstrain::kernels::cuda
