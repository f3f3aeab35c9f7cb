#pragma once

#include "engine/base/gpu_limits.h"

namespace dstrain {

/// What GPU number `device` lets kernels use, lowered by DSTRAIN_GPU_AS ("8.6"), by which a newer
/// GPU does what older ones do. Error{usage} where that is no lower capability.
[[nodiscard]] GpuLimits limits_of_device(int device);

/// Highest clocks that the driver states.
struct DeviceClocks {
  double processor_hz = 0;
  double memory_bytes_per_s = 0;  ///< read + write
};
[[nodiscard]] DeviceClocks clocks_of_device(int device);

}  // namespace dstrain
