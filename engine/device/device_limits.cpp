#include "engine/device/device_limits.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

namespace dstrain {

GpuLimits limits_of_device(int device) {
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
  GpuLimits limits = limits_of_capability(attribute(cudaDevAttrComputeCapabilityMajor),
                                          attribute(cudaDevAttrComputeCapabilityMinor));
  limits.shared_block =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  limits.shared_multiprocessor =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  const char* as = std::getenv("DSTRAIN_GPU_AS");
  return as == nullptr || *as == '\0' ? limits : limits_lowered(limits, as);
}

}  // namespace dstrain
