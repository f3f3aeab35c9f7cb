#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/nvml.h"

namespace dstrain {

/// One look at a GPU. What the driver does not say is -1.
struct GpuSample {
  int index = 0;  ///< on this machine, as nvidia-smi counts
  std::string name;
  std::string pci_bus;           ///< "0000:17:00.0", small letters; empty: not said
  std::int64_t used_bytes = -1;  ///< by all processes, without what the driver keeps for itself
  std::int64_t total_bytes = -1;
  int utilization = -1;         ///< % of the time in which some kernel ran
  int memory_utilization = -1;  ///< % of the time in which memory was read or written
  int temperature_c = -1;
  double power_w = -1;
  int sm_clock_mhz = -1;
  /// Why the clocks are low: bits of nvmlDeviceGetCurrentClocksThrottleReasons; 0: not low.
  std::uint64_t throttle = 0;
};

/// A sample of each GPU of this machine; empty without a driver.
[[nodiscard]] std::vector<GpuSample> sample_gpus(const Nvml& nvml);

/// Lines as `nvidia-smi --query-gpu=... --format=csv,nounits` prints them. `time_ns`:
/// CLOCK_REALTIME, printed in local time.
namespace gpu_csv {
inline constexpr const char* kMemoryHeader =
    "timestamp, index, name, memory.used [MiB], memory.total [MiB]\n";
inline constexpr const char* kHeader =
    "timestamp, index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], "
    "utilization.memory [%], temperature.gpu, power.draw [W], clocks.sm [MHz], "
    "clocks_event_reasons.active\n";
[[nodiscard]] std::string memory_line(const GpuSample& sample, std::int64_t time_ns);
[[nodiscard]] std::string line(const GpuSample& sample, std::int64_t time_ns);
}  // namespace gpu_csv

}  // namespace dstrain
