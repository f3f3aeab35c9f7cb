#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/inspect.h"

namespace dstrain::launcher {

struct GpuHealth {
  std::string driver;  ///< empty: no driver answers
  int driver_cuda = 0;
  std::vector<GpuFacts> gpus;
};

/// Asks the driver through NVML (libnvidia-ml.so.1, loaded when called), which makes no context on
/// a GPU. A machine without it has no driver and no GPUs.
[[nodiscard]] GpuHealth read_gpu_health();

/// "Xid" lines of the kernel's log, which the driver writes about faults of a GPU; the newest
/// `limit`. None where the log is not readable.
[[nodiscard]] std::vector<std::string> read_gpu_events(std::size_t limit);

}  // namespace dstrain::launcher
