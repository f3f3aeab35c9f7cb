#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/base/run_layout.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/metrics/metrics.h"
#include "engine/metrics/progress.h"
#include "engine/program/plan_report.h"
#include "engine/samples/sampler.h"
#include "engine/train/report/rank_lines.h"
#include "engine/train/session/session.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// "loss 0.4123, perplexity 1.51, ..." of language, "accuracy 91.20%, ..." of images.
[[nodiscard]] std::string describe_evaluation(const EvaluationTotals& totals, bool language);

/// What rank 0 says of a run: to a person, to metrics.jsonl and TensorBoard, to events.jsonl.
class RunReport {
 public:
  using Clock = std::chrono::steady_clock;

  /// Keeps the references. `first_step`: that the run goes on from; `start`: of this process;
  /// `changes`: since the checkpoint that it goes on from (changes_since).
  RunReport(const World& world, const RunLayout& directory, Session& session,
            const PlanReport& plan, Progress& progress, const RankRecordFile& record,
            std::int64_t first_step, Clock::time_point start, std::vector<std::string> changes);

  enum class Begin { started, resumed, next_phase };
  void begin(Begin how);
  /// `traced`: under the profiler, which makes it slower.
  void step(const StepOutcome& outcome, const HostTimes& host, bool traced);
  /// What this host's sampler has seen since the step before.
  void host(const HostSample& sample);
  void note(const std::string& text) { progress_.note(text); }
  /// `average`: of the average of the weights, where there is one. end_evaluation() follows.
  void evaluation(const EvaluationTotals& totals, const std::optional<EvaluationTotals>& average,
                  double seconds);
  /// Its answers, if any, and their means.
  void end_evaluation(const std::vector<GeneratedAnswer>& answers, const AnswerFigures& means);
  /// Writes confusion.csv and classes.csv into the run's folder, where the evaluation counted.
  void confusion(const EvaluationTotals& totals);
  /// `steps`: done by now; `stall_s`: that training has waited for it.
  void checkpoint(const SaveResult& result, std::int64_t steps, double stall_s);
  void verified(const VerifyResult& result, std::int64_t steps);
  /// The save that was due after `steps` is left out, since that of step `running` still runs.
  void skipped_checkpoint(std::int64_t steps, std::int64_t running, double interval_s);
  /// What several ranks hold was compared after `steps`: "weights" or "states". `wrong`: who
  /// holds something else; empty: all are equal.
  void compared_replicas(const std::string& what, std::int64_t steps, const std::string& wrong);
  /// `host_s`: what the host works for one step; 0: not measured.
  void end(bool stopped, double skipped_steps, double host_s, const SampleSummary& samples);

 private:
  void announce(Begin how);
  void show(const std::vector<GeneratedAnswer>& answers);
  void count(const StepOutcome& outcome, const HostTimes& host);
  [[nodiscard]] std::string describe(const EvaluationTotals& totals) const;
  /// Writes a line and an event of each member of a mixture.
  void describe_members(const EvaluationTotals& totals, std::int64_t step);
  [[nodiscard]] double mfu(double step_s) const;
  [[nodiscard]] double epoch_of(std::int64_t step) const;
  void report_speed();
  void report_times();
  void report_samples(const SampleSummary& samples);
  void report_memory();
  void report_plan(const SampleSummary& samples);
  void report_communication(std::int64_t steps);

  const World& world_;
  const RunLayout& directory_;
  Session& session_;
  const PlanReport& plan_;
  Progress& progress_;
  const RankRecordFile& record_;
  MetricsWriter metrics_;
  double gpu_util_ = kUnknown;    ///< for the next step
  double gpu_temp_c_ = kUnknown;  ///< the same
  std::int64_t first_step_;
  Clock::time_point start_;
  std::vector<std::string> changes_;
  bool new_process_ = true;  ///< else a phase after others
  std::optional<double> first_step_s_;
  Clock::time_point first_outcome_{};
  double smoothed_step_s_ = 0;
  double useful_flops_ = 0;                             ///< of this rank's step
  MemoryFigures memory_;                                ///< of the allocator, read now and then
  std::optional<EvaluationTotals> evaluation_;          ///< the last
  std::optional<EvaluationTotals> average_evaluation_;  ///< the same of the average of the weights
  std::int64_t evaluated_step_ = -1;
  EvaluationMetrics evaluation_metrics_;  ///< the same, until its answers are there
  std::string answers_;                   ///< of the last, in words: "exact match 62.50%, ..."
  std::vector<double> steady_s_;          ///< times of steps behind the first ones, untraced
  StepTimes times_;                       ///< sums over the timed ones of them
  double data_wait_s_ = 0;                ///< sum over them
  std::int64_t timed_ = 0;
  std::map<std::string, std::int64_t> compared_;  ///< how often replicas were, by what of them
  double timed_s_ = 0;                            ///< sum of their times
};

}  // namespace dstrain
