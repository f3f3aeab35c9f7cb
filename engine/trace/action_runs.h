#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/trace/gpu_events.h"
#include "engine/trace/intervals.h"

namespace dstrain::trace {

/// The actions of one rank by the time that they took on its device, and what each waited for.
class ActionRuns {
 public:
  /// Keeps the reference. Empty where the trace has no rank{r}_actions.json.
  explicit ActionRuns(const RankEvents& rank);

  /// In order of their start.
  [[nodiscard]] const std::vector<ActionRun>& runs() const { return runs_; }
  [[nodiscard]] const ActionInfo& action(const ActionRun& run) const {
    return rank_->program[run.action];
  }
  /// Runs on the same rank that `run` waits for: the one before it on its lane, and those that its
  /// action names. An action without work on the device stands for the one before it on its lane.
  [[nodiscard]] std::vector<std::size_t> predecessors(std::size_t run) const;
  /// The one of them on another lane that ended last; nothing where there is none.
  [[nodiscard]] std::optional<std::size_t> last_of_other_lanes(std::size_t run) const;
  /// The run of an action in a step, or of the last one before it on its lane.
  [[nodiscard]] std::optional<std::size_t> find(std::int32_t step, int action) const;

 private:
  [[nodiscard]] std::vector<std::size_t> named(std::size_t run) const;

  const RankEvents* rank_;
  std::vector<ActionRun> runs_;
  std::map<std::pair<std::int32_t, int>, std::size_t> by_action_;
  std::vector<std::optional<std::size_t>> before_;  ///< on the lane, by run
};

/// Why the compute lane of a rank stood still; disjoint.
struct LaneTime {
  IntervalSet compute;  ///< it did not
  IntervalSet host;     ///< what comes next was not launched yet
  IntervalSet data;     ///< of that: the host waited for samples, or the lane for their copy
};
[[nodiscard]] LaneTime compute_lane_time(const RankEvents& rank, const ActionRuns& runs);

}  // namespace dstrain::trace
