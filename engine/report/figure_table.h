#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/report/run_data.h"
#include "engine/report/statistics.h"

namespace dstrain::report {

/// How a figure is written.
enum class Unit {
  number,      ///< four digits that count
  count,       ///< whole; nothing where it is 0
  share,       ///< per cent
  per_second,  ///< "2,610"
  seconds,
  bytes,
  mib
};

/// Lowest, mean and highest of samples over the time of a run, in MiB.
struct MemoryRange {
  double min = kUnknown;
  double mean = kUnknown;
  double peak = kUnknown;
};
/// Samples of GPU memory as `cut -d, -f4` reads them from memory.csv, of the `gpus` GPUs that held
/// the most; less what each held `before`, where that is given.
[[nodiscard]] MemoryRange gpu_memory(std::vector<GpuSample> samples, int gpus,
                                     const std::vector<double>& before = {});

/// What figures are read from.
struct Reading {
  const RunData& run;
  const std::vector<const StepRow*>& steady;  ///< steady_steps() of it
  int ranks = 0;
  // Memory over the time of the run: of GPUs, what they held more than before, of the host.
  MemoryRange gpu = {}, gpu_added = {}, cpu = {};
};
[[nodiscard]] Reading reading_of(const RunData& run, const std::vector<const StepRow*>& steady,
                                 int ranks, bool on_cpu);

/// Mean of those that are finite; kUnknown where none is.
[[nodiscard]] double mean_finite(const std::vector<double>& values);

// Figures of a run; kUnknown where the run does not tell one.
[[nodiscard]] Estimate step_median(const Reading& of, double StepRow::*field);
[[nodiscard]] Estimate step_estimate(const Reading& of, double StepRow::*field);
[[nodiscard]] Estimate steps_per_second(const Reading& of);
[[nodiscard]] Estimate train_seconds(const Reading& of);
[[nodiscard]] Estimate final_loss(const Reading& of);
[[nodiscard]] Estimate not_finite_steps(const Reading& of);
[[nodiscard]] Estimate skipped_steps(const Reading& of);
[[nodiscard]] Estimate steps_per_epoch(const Reading& of);
[[nodiscard]] Estimate last_evaluation(const Reading& of, double EvaluationRow::*field);
[[nodiscard]] Estimate evaluation_rate(const Reading& of);
/// The most that a step or a rank's timing says.
[[nodiscard]] Estimate max_memory(const Reading& of, double StepRow::*field,
                                  double TimingRow::*timing);
/// Share of the steps behind the warm-up in which ranks wait for each other.
[[nodiscard]] Estimate exposed_share(const Reading& of);
/// What all ranks keep on the host, by plan.
[[nodiscard]] Estimate planned_on_host(const Reading& of);

/// A figure: a row of a report, a key of JSON and CSV, a column of the benches.
struct Figure {
  std::string_view key;
  std::string_view title;  ///< of its row in a report; empty: none
  Unit unit = Unit::number;
  bool in_report = false;  ///< in the JSON of a report
  /// How a run tells it; nothing: the plan does, or a bench of several runs.
  Estimate (*read)(const Reading& of) = nullptr;
  std::string_view plan = {};  ///< its place in plan.json, "memory.total_bytes"
  bool interval = false;       ///< it has one
};

/// Figures of a run in the order of the report, then those of benches.
inline constexpr Figure kFigures[] = {
    {"samples_per_s",
     "samples/s, median",
     Unit::per_second,
     true,
     [](const Reading& of) { return step_estimate(of, &StepRow::samples_per_s); },
     {},
     true},
    {"tokens_per_s", "tokens/s, median", Unit::per_second, true,
     [](const Reading& of) { return step_median(of, &StepRow::tokens_per_s); }},
    {"step_s",
     "step, median",
     Unit::seconds,
     true,
     [](const Reading& of) { return step_estimate(of, &StepRow::step_s); },
     {},
     true},
    {"planned_step_s", "step as planned", Unit::seconds, true, nullptr, "step_s"},
    {"mfu", "MFU, median", Unit::share, true,
     [](const Reading& of) { return step_median(of, &StepRow::mfu); }},
    {"final_loss", "loss, last tenth", Unit::number, true, final_loss},
    {"evaluation_loss", "evaluation loss", Unit::number, true,
     [](const Reading& of) { return last_evaluation(of, &EvaluationRow::loss); }},
    {"evaluation_accuracy", "evaluation accuracy", Unit::share, true,
     [](const Reading& of) { return last_evaluation(of, &EvaluationRow::accuracy); }},
    {"not_finite", "steps with a loss not finite", Unit::count, true, not_finite_steps},
    {"skipped_steps", "", Unit::count, true, skipped_steps},
    {"memory_peak", "memory allocated, peak", Unit::bytes, true,
     [](const Reading& of) { return max_memory(of, &StepRow::memory_bytes, &TimingRow::peak); }},
    {"memory_reserved", "memory reserved", Unit::bytes, true,
     [](const Reading& of) {
       return max_memory(of, &StepRow::reserved_bytes, &TimingRow::reserved);
     }},
    {"memory_planned", "memory planned", Unit::bytes, true, nullptr, "memory.allocated_bytes"},
    {"memory_device", "memory of the device", Unit::bytes, true, nullptr, "memory.device_bytes"},
    // Shown by benches of runs.
    {"steps_per_s", "", Unit::per_second, false, steps_per_second},
    {"train_seconds", "", Unit::seconds, false, train_seconds},
    {"program_seconds", "", Unit::seconds, false,
     [](const Reading& of) { return Estimate{of.run.program_s}; }},
    {"evaluation_samples_per_s", "", Unit::per_second, false, evaluation_rate},
    {"steps_per_epoch", "", Unit::number, false, steps_per_epoch},
    {"exposed_comm_share", "", Unit::share, false, exposed_share},
    {"gpu_min", "", Unit::mib, false, [](const Reading& of) { return Estimate{of.gpu.min}; }},
    {"gpu_mean", "", Unit::mib, false, [](const Reading& of) { return Estimate{of.gpu.mean}; }},
    {"gpu_peak", "", Unit::mib, false, [](const Reading& of) { return Estimate{of.gpu.peak}; }},
    {"gpu_added_min", "", Unit::mib, false,
     [](const Reading& of) { return Estimate{of.gpu_added.min}; }},
    {"gpu_added_mean", "", Unit::mib, false,
     [](const Reading& of) { return Estimate{of.gpu_added.mean}; }},
    {"gpu_added_peak", "", Unit::mib, false,
     [](const Reading& of) { return Estimate{of.gpu_added.peak}; }},
    {"cpu_min", "", Unit::mib, false, [](const Reading& of) { return Estimate{of.cpu.min}; }},
    {"cpu_mean", "", Unit::mib, false, [](const Reading& of) { return Estimate{of.cpu.mean}; }},
    {"cpu_peak", "", Unit::mib, false, [](const Reading& of) { return Estimate{of.cpu.peak}; }},
    {"device_planned", "", Unit::bytes, false, nullptr, "memory.total_bytes"},
    {"host_planned", "", Unit::bytes, false, planned_on_host},
    {"micro", "", Unit::number, false, nullptr, "batch.micro"},
    {"micro_batches", "", Unit::number, false, nullptr, "batch.micro_batches"},
    {"planned_lone_step_s", "", Unit::seconds, false, nullptr, "step_without_exchanges_s"},
    // Filled by benches: of runs beside each other, of traces, of pipelines.
    {"efficiency", "", Unit::share},
    {"weak_efficiency", "", Unit::share},
    {"strong_efficiency", "", Unit::share},
    {"rate_per_rank", "", Unit::per_second},
    {"forward_s", "", Unit::seconds},
    {"backward_s", "", Unit::seconds},
    {"weight_s", "", Unit::seconds},
    {"optimizer_s", "", Unit::seconds},
    {"exposed_gather_s", "", Unit::seconds},
    {"exposed_reduce_s", "", Unit::seconds},
    {"exposed_stages_s", "", Unit::seconds},
    {"exposed_norm_s", "", Unit::seconds},
    {"exposed_input_s", "", Unit::seconds},
    {"exposed_blocks_s", "", Unit::seconds},
    {"bubble", "", Unit::share},
    {"planned_bubble", "", Unit::share},
    {"lone_step_s", "", Unit::seconds},
    {"exchange_s", "", Unit::seconds},
    {"planned_exchange_s", "", Unit::seconds},
    {"contention_s", "", Unit::seconds},
    {"peak_bytes", "", Unit::bytes},
};
inline constexpr std::size_t kFigureCount = std::size(kFigures);

/// A row of the table by its key; a key that is in no row does not compile.
struct FigureKey {
  std::size_t row = 0;
  template <std::size_t Size>
  consteval FigureKey(const char (&key)[Size]) {  // NOLINT(google-explicit-constructor)
    while (kFigures[row].key != std::string_view(key)) ++row;
  }
};

/// A value for each row; kUnknown at first.
class Figures {
 public:
  Figures() { values_.fill({.value = kUnknown}); }
  [[nodiscard]] Estimate& operator[](FigureKey key) { return values_[key.row]; }
  [[nodiscard]] const Estimate& operator[](FigureKey key) const { return values_[key.row]; }
  [[nodiscard]] double value(FigureKey key) const { return values_[key.row].value; }
  [[nodiscard]] Estimate& at(std::size_t row) { return values_.at(row); }
  [[nodiscard]] const Estimate& at(std::size_t row) const { return values_.at(row); }

 private:
  std::array<Estimate, kFigureCount> values_;
};

/// Figures that a run or its plan tells.
[[nodiscard]] Figures read_figures(const Reading& of);
/// "2,610 [2,580, 2,640]", "-".
[[nodiscard]] std::string figure_words(const Figure& figure, const Estimate& value);

}  // namespace dstrain::report
