#include "engine/checkpoint/save_clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"

namespace dstrain {
namespace {

/// Seconds of one GPU for each stop of a job.
constexpr double kRankSecondsPerStop = 54.0 * 86'400 * 16'384 / 419;
constexpr double kShortest_s = 60;
constexpr double kLongest_s = 3600;

double between_stops_s(int ranks) { return kRankSecondsPerStop / ranks; }

}  // namespace

SaveClock::SaveClock(const Interval& interval, int ranks, Time now)
    : interval_(interval), ranks_(ranks), next_(now) {
  choose();
  restart(now);
}

void SaveClock::choose() {
  if (interval_.kind == Interval::Kind::time) seconds_ = static_cast<double>(interval_.seconds);
  if (interval_.kind == Interval::Kind::automatic)
    seconds_ =
        std::clamp(std::sqrt(2 * stall_s_ * between_stops_s(ranks_)), kShortest_s, kLongest_s);
}

void SaveClock::restart(Time now) {
  next_ = now + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds_));
}

void SaveClock::add_stall(double seconds) {
  stall_s_ = std::max(stall_s_, seconds);
  choose();
}

std::string SaveClock::reason() const {
  if (interval_.kind != Interval::Kind::automatic) return {};
  return fmt::format(
      "checkpoints every {}: a job of {} rank{} stops about every {}, a save holds it up for {}",
      format_duration(seconds_), ranks_, ranks_ == 1 ? "" : "s",
      format_duration(between_stops_s(ranks_)), format_duration(stall_s_));
}

}  // namespace dstrain
