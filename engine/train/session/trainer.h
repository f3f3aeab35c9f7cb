#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "engine/checkpoint/best_checkpoint.h"
#include "engine/checkpoint/save_clock.h"
#include "engine/recipe/load.h"
#include "engine/recipe/phases.h"
#include "engine/samples/sampler.h"
#include "engine/train/measure/trace_window.h"
#include "engine/train/report/preparation_notes.h"
#include "engine/train/report/rank_lines.h"
#include "engine/train/report/run_report.h"
#include "engine/train/session/resume.h"
#include "engine/train/session/session.h"
#include "engine/train/session/skip_streak.h"

namespace dstrain {

/// One rank in one phase of a run: steps, evaluations and checkpoints in their order, until all
/// steps are done or it is asked to stop (engine/train/session/stop_signal.h).
class Trainer {
 public:
  using Clock = std::chrono::steady_clock;

  /// Keeps the references. Collective; goes on from the checkpoint of `place`. `start`: of this
  /// process, or of the phase.
  Trainer(const LoadedRecipe& loaded, int phase, const World& world, RankRecordFile& record,
          RunPlace place, Clock::time_point start);

  void run();
  /// After run(): it was asked to stop, or run.best.patience ended it.
  [[nodiscard]] bool stopped() const { return stop_ || gave_up_; }
  /// After run(): where the next phase begins, with the checkpoint that ended this one.
  [[nodiscard]] RunPlace next_place() const;

 private:
  void restore();
  /// More phases follow.
  [[nodiscard]] bool goes_on() const {
    return !gave_up_ && session_.phase() + 1 < num_phases(recipe_);
  }
  void open_report(Clock::time_point start);
  void handle(const StepOutcome& outcome);
  [[noreturn]] void give_up(const StepOutcome& outcome);
  /// Ends the run where ranks hold other weights than they should.
  void require_equal(const std::optional<Session::WrongReplica>& wrong, const char* what,
                     std::int64_t steps);
  void enqueue();
  /// Steps that this rank was asked to trace.
  [[nodiscard]] int trace_requested();
  /// Rank 0: whether the clock asks for a checkpoint. Says when one is skipped.
  [[nodiscard]] bool save_requested();
  /// How long the host needs for a step: with nothing queued before it, so that no call waits for
  /// the device to take work.
  void enqueue_timed();
  void finish_trace();
  void start_samples();
  void show_trace_notes();
  void drain();
  void evaluate();
  /// Whether the evaluation is the best so far, whose checkpoint is to be kept.
  bool note_best(const EvaluationTotals& totals, const AnswerFigures& answers);
  void save();
  void wait_for_saves();
  void report_saves(bool wait);
  /// Error when the newest save has failed: the run would end with nothing to go on from.
  void require_saved() const;

  const LoadedRecipe& loaded_;
  const Recipe recipe_;  ///< as the phase has it
  const World& world_;
  RankRecordFile& record_;
  std::unique_ptr<Progress> progress_;
  PreparationNotes preparation_{*progress_, record_};
  RunPlace place_;
  std::shared_future<std::string> base_;  ///< rank 0: what the frozen weights are
  Session session_;
  PlanReport plan_;
  std::optional<RunReport> report_;  ///< of rank 0
  std::unique_ptr<CheckpointSaver> saver_;
  std::int64_t first_step_ = 0;
  SaveClock save_clock_;
  std::int64_t save_at_ = -1;  ///< steps done when the save that rank 0 asked for is due
  double stall_s_ = 0;         ///< that training has waited for saves since the last was reported
  std::int64_t saved_step_ = -1;
  std::filesystem::path saved_;  ///< the newest checkpoint; of `saved_step_` when no save runs
  std::optional<SaveResult> failed_save_;  ///< the newest, if it has failed
  SkipStreak skipped_;                     ///< up to `last_`
  bool stop_ = false;
  BestRecord best_;
  bool gained_ = false;   ///< the last evaluation was the best: it is to be saved
  bool gave_up_ = false;  ///< too many evaluations without a gain
  StepOutcome last_;
  double host_s_ = 0;  ///< work of the host in one step, without waiting for data
  std::unique_ptr<RankLines> lines_;
  std::unique_ptr<Sampler> sampler_;  ///< of the first rank of each host
  std::unique_ptr<TraceWindow> trace_;
  Clock::time_point next_look_{};  ///< for a request
  struct Enqueued {
    HostTimes host;
    bool traced = false;
  };
  std::deque<Enqueued> enqueued_;  ///< steps under way, in order
};

}  // namespace dstrain
