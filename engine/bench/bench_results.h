#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/bench/bench_log.h"
#include "engine/report/compare.h"

namespace dstrain::bench {

using report::kUnknown;

/// Lowest, mean and highest of samples over the time of a run, in MiB.
struct MemoryRange {
  double min = kUnknown;
  double mean = kUnknown;
  double peak = kUnknown;
};

/// Figures of a case: medians of its repeats that ended well; kUnknown where none has one.
struct CaseResult {
  Case which;
  std::string recipe;
  std::string variant;
  std::string model = {};  ///< of the plan
  std::string data = {};   ///< data.name of the recipe
  std::size_t runs = 0;
  std::string failure = {};  ///< why a repeat failed; empty: none did
  double loss = kUnknown;
  std::vector<double> evaluation_losses = {};  ///< in order of time
  double evaluation_accuracy = kUnknown;       ///< of the last
  double steps_per_s = kUnknown;
  double samples_per_s = kUnknown;
  double tokens_per_s = kUnknown;
  double evaluation_samples_per_s = kUnknown;
  double steps_per_epoch = kUnknown;
  double seconds = kUnknown;         ///< of a run, its start and end included
  double train_seconds = kUnknown;   ///< sum of the step times
  MemoryRange gpu = {};              ///< as nvidia-smi says, of as many GPUs as there are ranks
  MemoryRange gpu_added = {};        ///< the same less that before the start; none on CPUs
  MemoryRange cpu = {};              ///< resident and shared, of all ranks of the first host
  double memory_peak = kUnknown;     ///< bytes that the busiest rank allocated
  double memory_planned = kUnknown;  ///< bytes that it allocates by plan
  double device_planned = kUnknown;  ///< bytes, with what dstrain does not allocate
  double host_planned = kUnknown;    ///< bytes of all ranks that rest on the host by plan
  double planned_step_s = kUnknown;
  report::Estimate step_s = {.value = kUnknown};  ///< of the first repeat, with its interval
  double mfu = kUnknown;
  double exposed_comm_share = kUnknown;
  std::string device = {};
  /// Beside the first variant of the same recipe and ranks.
  report::Estimate speed = {.value = kUnknown};
  std::string verdict = {};
  double efficiency = kUnknown;  ///< rate / (n / n0 x rate of n0 ranks), of the same variant
};

/// Figures of a run, of the steps that `count` leaves in it; nothing where it is no good, and why.
[[nodiscard]] std::optional<report::RunFigures> read_figures(
    const std::filesystem::path& folder, const std::function<void(report::RunData&)>& count,
    std::string& reason);

/// Of all cases, those without a run included.
[[nodiscard]] std::vector<CaseResult> bench_results(const BenchPlan& plan, const BenchLog& log);

/// Samples of GPU memory as `cut -d, -f4` reads them from memory.csv, of the `gpus` GPUs that held
/// the most; less what each held `before`, where that is given.
[[nodiscard]] MemoryRange gpu_memory(std::vector<report::GpuSample> samples, int gpus,
                                     const std::vector<double>& before = {});

[[nodiscard]] nlohmann::ordered_json results_json(const std::vector<CaseResult>& results);

}  // namespace dstrain::bench
