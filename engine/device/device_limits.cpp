#include "engine/device/device_limits.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

namespace dstrain {
namespace {

auto attributes_of(int device) {
  return [device](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
}

}  // namespace

GpuLimits limits_of_device(int device) {
  const auto attribute = attributes_of(device);
  GpuLimits limits = limits_of_capability(attribute(cudaDevAttrComputeCapabilityMajor),
                                          attribute(cudaDevAttrComputeCapabilityMinor));
  limits.shared_block =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  limits.shared_multiprocessor =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  const char* as = std::getenv("DSTRAIN_GPU_AS");
  return as == nullptr || *as == '\0' ? limits : limits_lowered(limits, as);
}

DeviceClocks clocks_of_device(int device) {
  const auto attribute = attributes_of(device);
  constexpr double kKilohertz = 1e3, kTransfersPerClock = 2, kBitsPerByte = 8;
  return {.processor_hz = kKilohertz * attribute(cudaDevAttrClockRate),
          .memory_bytes_per_s = kTransfersPerClock * kKilohertz *
                                attribute(cudaDevAttrMemoryClockRate) *
                                attribute(cudaDevAttrGlobalMemoryBusWidth) / kBitsPerByte};
}

}  // namespace dstrain
