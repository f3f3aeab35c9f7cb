#include "engine/samples/gpu_sample.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace dstrain {
namespace {

struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;
};
/// Tells what is used from what the driver keeps for itself.
struct NvmlMemoryV2 {
  unsigned version = sizeof(NvmlMemoryV2) | 2u << 24;
  unsigned long long total = 0, reserved = 0, free = 0, used = 0;
};
struct NvmlUtilization {
  unsigned gpu = 0, memory = 0;
};
struct NvmlPci {
  std::array<char, 16> older_text{};
  unsigned domain = 0, bus = 0, device = 0, id = 0, subsystem = 0;
  std::array<char, 32> text{};
};
constexpr int kSmClock = 1;  // nvmlClockType_t

void read_memory(const Nvml& nvml, NvmlDevice device, GpuSample& sample) {
  NvmlMemoryV2 memory;
  if (nvml.call<int(NvmlDevice, NvmlMemoryV2*)>("nvmlDeviceGetMemoryInfo_v2", device, &memory)) {
    sample.used_bytes = static_cast<std::int64_t>(memory.used);
    sample.total_bytes = static_cast<std::int64_t>(memory.total);
    return;
  }
  NvmlMemory older;
  if (nvml.call<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", device, &older)) {
    sample.used_bytes = static_cast<std::int64_t>(older.used);
    sample.total_bytes = static_cast<std::int64_t>(older.total);
  }
}

std::string mebibytes(std::int64_t bytes) {
  return bytes < 0 ? "[N/A]" : fmt::format("{}", bytes >> 20);
}

std::string known(int value) { return value < 0 ? "[N/A]" : fmt::format("{}", value); }

std::string local_time(std::int64_t time_ns) {
  const std::time_t seconds = time_ns / 1'000'000'000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y/%m/%d %H:%M:%S", &parts);
  return fmt::format("{}.{:03}", text.data(), time_ns / 1'000'000 % 1000);
}

}  // namespace

std::vector<GpuSample> sample_gpus(const Nvml& nvml) {
  std::vector<GpuSample> samples;
  unsigned count = 0;
  if (!nvml.ready() || !nvml.call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count)) return samples;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    if (!nvml.call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", i, &device))
      continue;
    GpuSample sample;
    sample.index = static_cast<int>(i);
    std::array<char, 96> name{};
    if (nvml.call<int(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName", device, name.data(),
                                                    static_cast<unsigned>(name.size())))
      sample.name = name.data();
    NvmlPci pci;
    if (nvml.call<int(NvmlDevice, NvmlPci*)>("nvmlDeviceGetPciInfo_v3", device, &pci))
      sample.pci_bus = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
    read_memory(nvml, device, sample);
    NvmlUtilization busy;
    if (nvml.call<int(NvmlDevice, NvmlUtilization*)>("nvmlDeviceGetUtilizationRates", device,
                                                     &busy)) {
      sample.utilization = static_cast<int>(busy.gpu);
      sample.memory_utilization = static_cast<int>(busy.memory);
    }
    unsigned number = 0;
    if (nvml.call<int(NvmlDevice, int, unsigned*)>("nvmlDeviceGetTemperature", device, 0, &number))
      sample.temperature_c = static_cast<int>(number);
    if (nvml.call<int(NvmlDevice, unsigned*)>("nvmlDeviceGetPowerUsage", device, &number))
      sample.power_w = number * 1e-3;
    if (nvml.call<int(NvmlDevice, int, unsigned*)>("nvmlDeviceGetClockInfo", device, kSmClock,
                                                   &number))
      sample.sm_clock_mhz = static_cast<int>(number);
    unsigned long long reasons = 0;
    if (nvml.call<int(NvmlDevice, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons",
                                                        device, &reasons))
      sample.throttle = reasons;
    samples.push_back(std::move(sample));
  }
  return samples;
}

namespace gpu_csv {

std::string memory_line(const GpuSample& s, std::int64_t time_ns) {
  return fmt::format("{}, {}, {}, {}, {}\n", local_time(time_ns), s.index, s.name,
                     mebibytes(s.used_bytes), mebibytes(s.total_bytes));
}

std::string line(const GpuSample& s, std::int64_t time_ns) {
  return fmt::format("{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, 0x{:016x}\n", local_time(time_ns),
                     s.index, s.name, mebibytes(s.used_bytes), mebibytes(s.total_bytes),
                     known(s.utilization), known(s.memory_utilization), known(s.temperature_c),
                     s.power_w < 0 ? "[N/A]" : fmt::format("{:.2f}", s.power_w),
                     known(s.sm_clock_mhz), s.throttle);
}

}  // namespace gpu_csv
}  // namespace dstrain
