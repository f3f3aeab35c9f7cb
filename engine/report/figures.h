#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/report/figure_table.h"
#include "engine/report/goodput.h"

namespace dstrain::report {

/// What a step is split into; they are disjoint and add up to the step.
/// `receive` is the wait for other stages of a pipeline, in receives and for sends.
enum class Part { compute, input, gather, reduce, receive, norm, update, other };
inline constexpr std::size_t kParts = 8;
/// "compute", "wait for gather".
[[nodiscard]] const char* part_name(std::size_t part);

/// Mean of a rank's steady steps, in seconds.
struct RankSplit {
  int rank = 0;
  double step_s = 0;
  std::array<double, kParts> parts = {};
};

/// Time of a step in which nothing was computed, mean of the ranks.
struct LostTime {
  std::string what;
  double seconds = 0;
  double share = 0;  ///< of a step
};

/// A change that would make steps shorter or the run sound.
struct Advice {
  std::string id;       ///< "exposed-reduce"
  std::string finding;  ///< with its numbers
  std::string change;
  double share = 0;                         ///< of a step that is at stake
  std::vector<std::string> overrides = {};  ///< of the recipe, "key=value"; empty: no key does it
  /// Change of the predicted step, -0.1: 10 % shorter; kUnknown: not predicted.
  double predicted_change = kUnknown;
};

struct CollectiveRow {
  std::string name;
  double calls = 0;  ///< a step, of a rank
  double bytes = 0;
};

struct GpuSummary {
  int index = 0;
  std::string name;
  std::size_t samples = 0;
  double peak_mib = kUnknown;
  double total_mib = kUnknown;
  double mean_utilization = kUnknown;  ///< per cent
  double max_temperature = kUnknown;
  double mean_power_w = kUnknown;
  double throttled = 0;  ///< share of the samples
};

/// Ranks of a host and what they started, over all samples.
struct HostFigures {
  std::string host;
  std::size_t samples = 0;
  double cpu_mean = kUnknown;  ///< % of one core
  double cpu_peak = kUnknown;
  double memory_mean_mib = kUnknown;
  double memory_peak_mib = kUnknown;
  double gpu_peak_mib = kUnknown;  ///< of its GPU that held most
};

/// Everything that is shown of a run; text, Markdown, HTML and JSON are made of it.
struct RunFigures {
  RunData data;
  std::string label;  ///< name of the run, told apart from equal names by a number
  int ranks = 0;
  std::string device;  ///< "NVIDIA H100", "CPU"; empty: not known
  std::size_t num_steady = 0;
  std::int64_t last_step = 0;
  Figures figures;  ///< rows of kFigures
  std::vector<RankSplit> split;
  RankSplit mean_split;        ///< of all ranks; step_s 0: no timings
  std::vector<LostTime> lost;  ///< the largest three above 2 % of a step
  std::vector<CollectiveRow> collectives;
  std::vector<GpuSummary> gpus;
  std::vector<HostFigures> hosts = {};  ///< the first host first; empty without samples
  std::vector<Advice> advice;
  std::optional<Goodput> goodput = {};
  std::string sentence;
};

/// Steps by which speed is measured: without warm-up, traced, evaluation and checkpoint steps and
/// the step after these.
[[nodiscard]] std::vector<const StepRow*> steady_steps(const RunData& run);

/// All but label and advice. `ranks`: as whoever started the run knows; 0: as it says.
[[nodiscard]] RunFigures run_figures(RunData run, int ranks = 0);

/// Step time in seconds that is predicted for the run's recipe under overrides; nothing where that
/// fails.
using PredictStep =
    std::function<std::optional<double>(const RunFigures& run, const std::vector<std::string>&)>;
/// At most 5, the largest share first.
[[nodiscard]] std::vector<Advice> advise(const RunFigures& run, const PredictStep& predict);

}  // namespace dstrain::report
