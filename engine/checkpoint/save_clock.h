#pragma once

#include <chrono>
#include <string>

#include "engine/recipe/interval.h"

namespace dstrain {

/// When a run that saves by the clock (run.checkpoint.every: 10m, auto) saves next. For the one
/// rank that decides.
///
/// `auto`: sqrt(2 x stall of a save x time between two stops of the job), which loses least to
/// saves and repeated steps together (Young 1974, doi:10.1145/361147.361115; Daly 2006), from a
/// minute to an hour. Stops are taken for as frequent as those of Llama 3 on 16,384 GPUs
/// (arXiv:2407.21783: 419 in 54 days), in proportion to the ranks. The stall is the longest so far,
/// at least a second.
class SaveClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `interval` is_by_clock(), else nothing is ever due.
  SaveClock(const Interval& interval, int ranks, Time now);

  [[nodiscard]] bool is_due(Time now) const { return seconds_ > 0 && now >= next_; }
  /// A save has been asked for, or skipped: the next one is due an interval later.
  void restart(Time now);
  /// Training has waited so long for a save.
  void add_stall(double seconds);

  [[nodiscard]] double interval_s() const { return seconds_; }
  /// "checkpoints every 3m 31s: a job of 8192 ranks stops about every 6h 11m, a save holds it up
  /// for 1 s"; empty where the recipe says how often.
  [[nodiscard]] std::string reason() const;

 private:
  void choose();

  Interval interval_;
  int ranks_;
  double stall_s_ = 1;
  double seconds_ = 0;  ///< 0: never
  Time next_;
};

}  // namespace dstrain
