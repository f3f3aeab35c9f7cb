#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/report/confusion.h"
#include "engine/trace/analysis.h"

namespace dstrain::report {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// A line of metrics.jsonl of a step; a number that it lacks is kUnknown. A loss may be inf or nan.
struct StepRow {
  std::int64_t step = 0;
  double epoch = kUnknown;
  double loss = kUnknown;
  double lr = kUnknown;
  double grad_norm = kUnknown;
  double samples_per_s = kUnknown;
  double tokens_per_s = kUnknown;
  double mfu = kUnknown;
  double step_s = kUnknown;
  double memory_bytes = kUnknown;    ///< allocated at the peak
  double reserved_bytes = kUnknown;  ///< held by the allocator
  double skipped_steps = kUnknown;
};

/// A number of a line under its key in metrics.jsonl.
template <class Row>
struct LineNumber {
  const char* key;
  double Row::*field;
};
inline constexpr LineNumber<StepRow> kStepNumbers[] = {
    {"epoch", &StepRow::epoch},
    {"loss", &StepRow::loss},
    {"lr", &StepRow::lr},
    {"grad_norm", &StepRow::grad_norm},
    {"samples_per_s", &StepRow::samples_per_s},
    {"tokens_per_s", &StepRow::tokens_per_s},
    {"mfu", &StepRow::mfu},
    {"step_s", &StepRow::step_s},
    {"memory_bytes", &StepRow::memory_bytes},
    {"memory_reserved_bytes", &StepRow::reserved_bytes},
    {"skipped_steps", &StepRow::skipped_steps},
};

struct EvaluationRow {
  std::int64_t step = 0;
  double epoch = kUnknown;
  double loss = kUnknown;
  double accuracy = kUnknown;
  double top5 = kUnknown;
  double rewards_chosen = kUnknown;  ///< of pairs of answers, like the next four
  double rewards_rejected = kUnknown;
  double rewards_margins = kUnknown;
  double logps_chosen = kUnknown;
  double logps_rejected = kUnknown;
  double ema_loss = kUnknown;  ///< of the average of the weights
  double ema_accuracy = kUnknown;
  double exact_match = kUnknown;  ///< of the answers of run.generate, like the next two
  double f1 = kUnknown;
  double right_answers = kUnknown;
  double samples = kUnknown;
  double seconds = kUnknown;
  // From these and the steps.
  double samples_per_s = kUnknown;  ///< both models, where the average is evaluated, too
  double training_loss = kUnknown;  ///< mean since the evaluation before
};

inline constexpr LineNumber<EvaluationRow> kEvaluationNumbers[] = {
    {"epoch", &EvaluationRow::epoch},
    {"loss", &EvaluationRow::loss},
    {"accuracy", &EvaluationRow::accuracy},
    {"top5", &EvaluationRow::top5},
    {"rewards/chosen", &EvaluationRow::rewards_chosen},
    {"rewards/rejected", &EvaluationRow::rewards_rejected},
    {"rewards/margins", &EvaluationRow::rewards_margins},
    {"logps/chosen", &EvaluationRow::logps_chosen},
    {"logps/rejected", &EvaluationRow::logps_rejected},
    {"ema_loss", &EvaluationRow::ema_loss},
    {"ema_accuracy", &EvaluationRow::ema_accuracy},
    {"exact_match", &EvaluationRow::exact_match},
    {"f1", &EvaluationRow::f1},
    {"right_answers", &EvaluationRow::right_answers},
    {"samples", &EvaluationRow::samples},
    {"seconds", &EvaluationRow::seconds},
};

/// A line of ranks/rank0000.jsonl, in seconds and bytes.
struct TimingRow {
  std::int64_t step = 0;
  double step_s = 0;
  double forward_s = 0;
  double backward_s = 0;
  double norm_s = 0;
  double update_s = 0;
  double data_wait_s = 0;
  double host_s = 0;
  double wait_gather_s = 0;
  double wait_reduce_s = 0;
  double wait_receive_s = 0;
  double wait_send_s = 0;
  double waits_in_norm_s = 0, waits_in_update_s = 0;  ///< of these and of norm_s and update_s
  double wait_copy_in_s = 0;
  double exposed_comm_s = 0;
  double reserved = 0;
  double peak = 0;
  double host_rss = 0;
  bool traced = false;
  std::map<std::string, std::pair<double, double>> calls = {};  ///< count and bytes
};

struct RankTimings {
  int rank = 0;
  std::vector<TimingRow> rows;
};

struct Event {
  std::string kind;
  std::int64_t step = 0;
  std::string time = {};
  nlohmann::json fields = {};  ///< the whole line, of kinds that goodput_of() reads
};

/// A line of gpu.csv or memory.csv; columns that are not there are kUnknown.
struct GpuSample {
  std::string time;
  int index = 0;
  std::string name;
  double memory_mib = kUnknown;
  double total_mib = kUnknown;
  double utilization = kUnknown;  ///< per cent
  double temperature = kUnknown;  ///< degrees Celsius
  double power_w = kUnknown;
  bool throttled = false;
};

/// A line of cpu.txt: the ranks of the first host and what they started.
struct CpuSample {
  double elapsed_s = 0;
  double share = 0;  ///< % of one core
  double resident_mib = 0;
  double virtual_mib = 0;
};

/// Samples of a host that is not the first.
struct HostSamples {
  std::string host;
  std::vector<CpuSample> cpu;
  double gpu_peak_mib = kUnknown;  ///< of its GPU that held most
};

/// How far a host's clock was from the controller's, at the last reading.
struct ClockOffset {
  std::string host = {};
  double t_ns = kUnknown;  ///< when, by the controller's clock, since 1970
  double offset_ns = kUnknown;
  double bound_ns = kUnknown;  ///< the offset is known to within this
};

/// An action on its lane; nanoseconds from the begin of the step.
struct LaneEvent {
  int rank = 0;
  std::string lane;
  std::string name;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
};
/// The last step that was traced.
struct Timeline {
  std::int64_t step = 0;
  std::vector<LaneEvent> events;
};

/// What the trace of the run's last traced window says.
struct TracedSteps {
  std::filesystem::path folder;
  std::int64_t first_step = 0;  ///< 0: the traces do not say
  std::int64_t last_step = 0;
  trace::Analysis analysis;
};

/// What was wrong with a file of a run.
struct Problem {
  std::string file;  ///< in the run's folder
  std::string what;
};

/// What a run's folder holds. What is missing is empty; what is broken is in `problems`, and the
/// rest of it is there.
struct RunData {
  std::filesystem::path path;
  std::string name;
  std::vector<StepRow> steps;
  std::vector<EvaluationRow> evaluations;
  std::optional<Confusion> confusion = {};  ///< of an evaluation of images
  /// Steps at the begin that are left out of all speeds; nothing: by their number.
  std::optional<std::int64_t> warmup = {};
  std::vector<Event> events;
  std::vector<RankTimings> ranks;  ///< by rank
  nlohmann::json plan;
  nlohmann::json environment;
  nlohmann::json failure;
  std::vector<std::pair<std::string, std::string>> settings;  ///< of the resolved recipe
  int trace_steps = 0;            ///< of the recipe: steps of a window; 0: none is traced
  std::string trace_output = {};  ///< of the recipe: folder of traces; empty: traces/
  std::vector<GpuSample> gpus;    ///< of the first host
  // A bench knows these of its runs.
  double program_s = kUnknown;                ///< from the start of the program to its end
  std::vector<double> gpus_before_mib = {};   ///< what each GPU held before the start
  std::vector<CpuSample> cpu;                 ///< of the first host
  std::vector<HostSamples> other_hosts = {};  ///< by name
  std::vector<ClockOffset> clocks = {};       ///< by host
  Timeline timeline;
  std::optional<TracedSteps> traced = {};  ///< none: no trace, or none that could be read
  std::vector<std::string> missing;        ///< files that other runs have
  std::vector<Problem> problems;
};

/// Reads a run. Error{data} where the folder has neither metrics.jsonl nor recipe.yaml.
[[nodiscard]] RunData read_run(const std::filesystem::path& path);

/// A number of `object`, or a text "nan", "inf", "-inf"; kUnknown where it is missing or else.
[[nodiscard]] double number(const nlohmann::json& object, const char* key);
/// A text of `object`; empty where it is missing.
[[nodiscard]] std::string text(const nlohmann::json& object, const char* key);
/// The value of a setting; empty where the recipe has no such key or could not be read.
[[nodiscard]] std::string setting(const RunData& run, std::string_view path);

}  // namespace dstrain::report
