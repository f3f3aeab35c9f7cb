#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/base/rank_record.h"
#include "launcher/base/hang_limit.h"

namespace dstrain::launcher {

/// How far one running rank is, as its record says.
struct RankProgress {
  int rank = 0;
  RankSection section = RankSection::init;
  std::int64_t progress = 0;
};

/// A rank that has not moved for longer than its section allows.
struct Stall {
  int rank = 0;
  RankSection section = RankSection::init;
  double stalled_s = 0;
  double limit_s = 0;
};

/// Tells which ranks of this node have stopped to make progress. A rank that waits for another one
/// stalls as well: who is to blame is seen only with the states of all ranks (hang_report.h).
///
/// The limit of a section is learned: 5 times the longest pause seen in it on this node once three
/// were seen. In steps and evaluation it is at least 60 s and 10 times the step that the plan
/// foresees, which is the limit until then; 5 min until there is a plan. Elsewhere, where a single
/// action may take as long as a disk likes, it is at least 30 min.
class StallWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// A fixed limit holds for every section. A rank that has not recorded anything yet still loads
  /// its program, which the limit is not for.
  explicit StallWatch(HangLimit limit = {}) : limit_(limit) {}

  /// How long to wait between two calls of look().
  [[nodiscard]] std::chrono::milliseconds period() const;
  /// Records the progress of the ranks and returns those over their limits; each again from time to
  /// time while it stalls, since the first reason may have been another rank's long save. Time
  /// in which the caller itself did not run (a suspended machine, a stopped agent) does not
  /// count.
  [[nodiscard]] std::vector<Stall> look(Clock::time_point now, std::span<const RankProgress> ranks);

  /// What the plan says of a training step; 0: nothing.
  void plan_step(double seconds) { planned_step_s_ = seconds; }

  /// Since the last progress of `rank`, as of the last look; 0 for one never seen.
  [[nodiscard]] double stalled_s(int rank) const;
  /// Infinite when nothing stalls.
  [[nodiscard]] double limit_s(RankSection section, bool has_begun = true) const;

 private:
  struct Seen {
    RankSection section = RankSection::init;
    std::int64_t progress = -1;
    double stalled_s = 0;
    double told_s = 0;  ///< how long it had stalled when it was told last
  };
  struct Pauses {
    int count = 0;
    double max_s = 0;
  };
  static constexpr std::size_t kNumSections = 6;

  [[nodiscard]] double learned_limit_s(RankSection section) const;
  [[nodiscard]] double planned_floor_s() const;

  HangLimit limit_;
  double planned_step_s_ = 0;
  Clock::time_point last_look_{};
  std::map<int, Seen> seen_;
  std::array<Pauses, kNumSections> pauses_;
};

}  // namespace dstrain::launcher
