#include "engine/samples/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/append_file.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/samples/gpu_sample.h"
#include "engine/samples/process_sample.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongLookS = 0.05;
constexpr int kMaxFailures = 3;
constexpr auto kPatience = std::chrono::seconds(2);
constexpr int kLooksPerSearch = 10;  ///< for processes that the ranks have started

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// A file that gets its header when it is new.
class CsvFile {
 public:
  CsvFile(std::filesystem::path path, const char* header)
      : path_(std::move(path)), header_(header) {}
  void append(const std::string& lines) {
    if (!open_) {
      std::error_code error;
      const bool begun = std::filesystem::file_size(path_, error) > 0 && !error;
      file_.open(path_);
      if (!begun) file_.append(header_);
      open_ = true;
    }
    file_.append(lines);
  }

 private:
  std::filesystem::path path_;
  const char* header_;
  AppendFile file_;
  bool open_ = false;
};

}  // namespace

void SampledRange::add(double value) {
  min = count == 0 ? value : std::min(min, value);
  max = count == 0 ? value : std::max(max, value);
  ++count;
  mean += (value - mean) / count;
}

struct Sampler::State {
  explicit State(const SamplerOptions& options)
      : interval_s(options.interval_s),
        memory(options.folder / ("memory" + options.suffix + ".csv"), gpu_csv::kMemoryHeader),
        gpu(options.folder / ("gpu" + options.suffix + ".csv"), gpu_csv::kHeader),
        cpu(options.folder / ("cpu" + options.suffix + ".txt"), cpu_log::kHeader) {}

  void loop();
  void look();
  void add(const std::vector<GpuSample>& samples, double cpu_share, const ProcessSample& processes);

  double interval_s;
  CsvFile memory, gpu, cpu;
  Nvml nvml;
  Clock::time_point begin = Clock::now();
  int looks = 0;
  std::vector<pid_t> pids;
  ProcessSample last;
  Clock::time_point last_time;

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  bool ended = false;
  SampleSummary summary;
  std::optional<HostSample> newest;
};

void Sampler::State::look() {
  const std::int64_t now_ns = system_time_ns();
  if (looks % kLooksPerSearch == 0) pids = rank_processes();
  const ProcessSample processes = sample_processes(pids);
  const auto now = Clock::now();
  // The first look has nothing to compare with, and a process that has ended takes its time along.
  const double share =
      looks == 0 ? 0
                 : std::max(0.0, 100 * (processes.cpu_s - last.cpu_s) / seconds(now - last_time));
  last = processes;
  last_time = now;
  ++looks;
  const std::vector<GpuSample> samples = sample_gpus(nvml);
  std::string memory_lines, gpu_lines;
  for (const GpuSample& sample : samples) {
    memory_lines += gpu_csv::memory_line(sample, now_ns);
    gpu_lines += gpu_csv::line(sample, now_ns);
  }
  if (!samples.empty()) {
    memory.append(memory_lines);
    gpu.append(gpu_lines);
  }
  cpu.append(cpu_log::line(seconds(now - begin), share, processes));
  add(samples, share, processes);
  const std::lock_guard lock(mutex);
  newest = {.time_ns = now_ns,
            .gpus = samples,
            .cpu_share = share,
            .resident_bytes = processes.resident_bytes};
}

void Sampler::State::add(const std::vector<GpuSample>& samples, double cpu_share,
                         const ProcessSample& processes) {
  constexpr double kMib = 1 << 20;
  const std::lock_guard lock(mutex);
  summary.gpus.resize(std::max(summary.gpus.size(), samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const GpuSample& sample = samples[i];
    SampleSummary::Gpu& gpu_summary = summary.gpus[i];
    gpu_summary.index = sample.index;
    if (sample.used_bytes >= 0)
      gpu_summary.used_mib.add(static_cast<double>(sample.used_bytes) / kMib);
    if (sample.utilization >= 0) gpu_summary.utilization.add(sample.utilization);
    if (sample.temperature_c >= 0) gpu_summary.temperature_c.add(sample.temperature_c);
    if (sample.power_w >= 0) gpu_summary.power_w.add(sample.power_w);
  }
  if (looks > 1) summary.cpu_share.add(cpu_share);
  summary.resident_mib.add(static_cast<double>(processes.resident_bytes) / kMib);
}

void Sampler::State::loop() {
  int failures = 0;
  std::unique_lock lock(mutex);
  while (!stopping) {
    lock.unlock();
    const auto start = Clock::now();
    try {
      look();
    } catch (const std::exception& error) {
      if (++failures == kMaxFailures) {
        log_warning("no further samples of GPUs and memory: {}", error.what());
        lock.lock();
        break;
      }
    }
    const double took_s = seconds(Clock::now() - start);
    if (took_s > kLongLookS) interval_s *= 2;
    lock.lock();
    const double rest_s = std::max(0.0, interval_s - took_s);
    changed.wait_for(lock, std::chrono::duration<double>(rest_s), [&] { return stopping; });
  }
  ended = true;
  changed.notify_all();
}

Sampler::Sampler(const SamplerOptions& options) : state_(std::make_shared<State>(options)) {
  std::thread([state = state_] { state->loop(); }).detach();
}

Sampler::~Sampler() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [&] { return state_->ended; });
}

SampleSummary Sampler::summary() const {
  const std::lock_guard lock(state_->mutex);
  return state_->summary;
}

std::optional<HostSample> Sampler::take_newest() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->newest, std::nullopt);
}

}  // namespace dstrain
