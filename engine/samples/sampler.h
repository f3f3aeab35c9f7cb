#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/samples/gpu_sample.h"

namespace dstrain {

/// Range of a figure over time.
struct SampledRange {
  double min = 0;
  double mean = 0;
  double max = 0;
  int count = 0;

  void add(double value);
};

struct SampleSummary {
  struct Gpu {
    int index = 0;
    SampledRange used_mib;
    SampledRange utilization;  ///< %
    SampledRange temperature_c;
    SampledRange power_w;
  };
  std::vector<Gpu> gpus;
  SampledRange cpu_share;     ///< % of one core
  SampledRange resident_mib;  ///< of the ranks of this machine and what they started
};

/// What one look saw.
struct HostSample {
  std::int64_t time_ns = 0;  ///< CLOCK_REALTIME
  std::vector<GpuSample> gpus;
  double cpu_share = 0;  ///< % of one core, of the ranks and what they started
  std::int64_t resident_bytes = 0;
};

struct SamplerOptions {
  std::filesystem::path folder;  ///< of memory.csv, gpu.csv and cpu.txt
  std::string suffix;            ///< "-n2": in the names of a host that is not the first
  double interval_s = 1;
};

/// Looks at the GPUs of this machine and at the job's processes on it every `interval_s`, on a
/// thread of its own, and appends what it sees to the files. Nothing waits for it: a look that
/// takes more than 50 ms doubles the interval, after three writes that fail it stops, and an end
/// that takes more than two seconds is not waited for.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// So far.
  [[nodiscard]] SampleSummary summary() const;
  /// The last look, once.
  [[nodiscard]] std::optional<HostSample> take_newest();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dstrain
