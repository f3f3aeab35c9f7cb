#include "launcher/doctor/gpu_health.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "engine/base/nvml.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {
namespace {

struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;
};
struct NvmlProcess {
  unsigned pid = 0;
  unsigned long long memory = 0;
  unsigned gpu_instance = 0, compute_instance = 0;
};
constexpr int kCorrected = 0;
constexpr int kUncorrected = 1;
constexpr int kSinceLoad = 0;
constexpr unsigned kMaxNvlinks = 18;
constexpr std::array<std::pair<unsigned long long, const char*>, 5> kThrottles = {
    {{0x04, "power cap"},
     {0x08, "hardware slowdown"},
     {0x20, "heat"},
     {0x40, "heat (hardware)"},
     {0x80, "power brake"}}};

std::vector<GpuProcess> read_processes(const Nvml& nvml, NvmlDevice device) {
  std::array<NvmlProcess, 64> list{};
  auto count = static_cast<unsigned>(list.size());
  std::vector<GpuProcess> processes;
  if (!nvml.call<int(NvmlDevice, unsigned*, NvmlProcess*)>(
          "nvmlDeviceGetComputeRunningProcesses_v3", device, &count, list.data())) {
    return processes;
  }
  for (std::size_t i = 0; i < count && i < list.size(); ++i) {
    GpuProcess process;
    process.pid = list[i].pid;
    process.name = read_first_line("/proc/" + std::to_string(process.pid) + "/comm");
    constexpr unsigned long long kUnknown = ~0ULL;
    if (list[i].memory != kUnknown)
      process.memory_bytes = static_cast<std::int64_t>(list[i].memory);
    processes.push_back(process);
  }
  return processes;
}

std::int64_t read_errors(const Nvml& nvml, NvmlDevice device, int type) {
  unsigned long long count = 0;
  const bool known = nvml.call<int(NvmlDevice, int, int, unsigned long long*)>(
      "nvmlDeviceGetTotalEccErrors", device, type, kSinceLoad, &count);
  return known ? static_cast<std::int64_t>(count) : -1;
}

int read_number(const Nvml& nvml, NvmlDevice device, const char* name) {
  unsigned number = 0;
  return nvml.call<int(NvmlDevice, unsigned*)>(name, device, &number) ? static_cast<int>(number)
                                                                      : -1;
}

GpuFacts read_gpu(const Nvml& nvml, NvmlDevice device, int index) {
  GpuFacts gpu;
  gpu.index = index;
  std::array<char, 96> text{};
  const auto size = static_cast<unsigned>(text.size());
  using Text = int(NvmlDevice, char*, unsigned);
  if (nvml.call<Text>("nvmlDeviceGetName", device, text.data(), size)) gpu.name = text.data();
  if (nvml.call<Text>("nvmlDeviceGetUUID", device, text.data(), size)) gpu.uuid = text.data();
  NvmlMemory memory;
  if (nvml.call<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo", device, &memory)) {
    gpu.memory_bytes = static_cast<std::int64_t>(memory.total);
    gpu.used_bytes = static_cast<std::int64_t>(memory.used);
  }
  unsigned number = 0;
  if (nvml.call<int(NvmlDevice, int, unsigned*)>("nvmlDeviceGetTemperature", device, 0, &number))
    gpu.temperature_c = static_cast<int>(number);
  unsigned long long reasons = 0;
  if (nvml.call<int(NvmlDevice, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons",
                                                      device, &reasons)) {
    for (const auto& [bit, name] : kThrottles) {
      if ((reasons & bit) != 0) gpu.throttled.emplace_back(name);
    }
  }
  gpu.corrected_errors = read_errors(nvml, device, kCorrected);
  gpu.uncorrected_errors = read_errors(nvml, device, kUncorrected);
  std::array<unsigned, 4> rows{};  // corrected, uncorrected, pending, failed
  if (nvml.call<int(NvmlDevice, unsigned*, unsigned*, unsigned*, unsigned*)>(
          "nvmlDeviceGetRemappedRows", device, rows.data(), &rows[1], &rows[2], &rows[3])) {
    gpu.remap_pending = rows[2] != 0;
    gpu.remap_failed = rows[3] != 0;
  }
  gpu.pcie_lanes = read_number(nvml, device, "nvmlDeviceGetCurrPcieLinkWidth");
  gpu.pcie_lanes_max = read_number(nvml, device, "nvmlDeviceGetMaxPcieLinkWidth");
  for (unsigned link = 0; link < kMaxNvlinks; ++link) {
    unsigned active = 0;
    if (nvml.call<int(NvmlDevice, unsigned, unsigned*)>("nvmlDeviceGetNvLinkState", device, link,
                                                        &active) &&
        active != 0) {
      ++gpu.nvlinks;
    }
  }
  gpu.processes = read_processes(nvml, device);
  return gpu;
}

}  // namespace

GpuHealth read_gpu_health() {
  GpuHealth health;
  const Nvml nvml;
  if (!nvml.ready()) return health;
  std::array<char, 96> text{};
  if (nvml.call<int(char*, unsigned)>("nvmlSystemGetDriverVersion", text.data(),
                                      static_cast<unsigned>(text.size()))) {
    health.driver = text.data();
  }
  nvml.call<int(int*)>("nvmlSystemGetCudaDriverVersion_v2", &health.driver_cuda);
  unsigned count = 0;
  nvml.call<int(unsigned*)>("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    if (!nvml.call<int(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2", i, &device))
      continue;
    health.gpus.push_back(read_gpu(nvml, device, static_cast<int>(i)));
  }
  return health;
}

std::vector<std::string> read_gpu_events(std::size_t limit) {
  std::vector<std::string> events;
  const UniqueFd log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::array<char, 8192> record{};
  while (log) {
    const ssize_t size = ::read(log.get(), record.data(), record.size());
    // EPIPE: records were overwritten while we read; the next read goes on behind them.
    if (size < 0 && (errno == EINTR || errno == EPIPE)) continue;
    if (size <= 0) break;
    const std::string_view text(record.data(), static_cast<std::size_t>(size));
    const auto start = text.find("NVRM: Xid");
    if (start == std::string_view::npos) continue;
    events.emplace_back(text.substr(start, text.find('\n', start) - start));
    if (events.size() > limit) events.erase(events.begin());
  }
  return events;
}

}  // namespace dstrain::launcher
