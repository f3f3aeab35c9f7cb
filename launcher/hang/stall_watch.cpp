#include "launcher/hang/stall_watch.h"

#include <algorithm>
#include <limits>

namespace dstrain::launcher {
namespace {

constexpr double kPeriod_s = 1;
constexpr int kSamples = 3;
constexpr double kFactor = 5;
constexpr double kRepeat_s = 30;
constexpr double kPlannedFactor = 10;
constexpr double kShortFloor_s = 60;
constexpr double kShortUnlearned_s = 300;
constexpr double kLong_s = 1800;

bool is_long(RankSection section) {
  return section != RankSection::step && section != RankSection::evaluate;
}

std::size_t index(RankSection section) {
  return static_cast<std::size_t>(std::clamp(section, RankSection::init, RankSection::finish));
}

}  // namespace

std::chrono::milliseconds StallWatch::period() const {
  const bool fixed = limit_.kind == HangLimit::Kind::fixed;
  const double seconds = fixed ? std::clamp(limit_.seconds / 4, 0.05, kPeriod_s) : kPeriod_s;
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

double StallWatch::limit_s(RankSection section, bool has_begun) const {
  switch (limit_.kind) {
    case HangLimit::Kind::learned:
      return has_begun ? learned_limit_s(section) : kLong_s;
    case HangLimit::Kind::fixed:
      return has_begun ? limit_.seconds : std::max(limit_.seconds, kLong_s);
    case HangLimit::Kind::off:
      break;
  }
  return std::numeric_limits<double>::infinity();
}

double StallWatch::learned_limit_s(RankSection section) const {
  const double min = is_long(section) ? kLong_s : planned_floor_s();
  const Pauses& pauses = pauses_.at(index(section));
  if (pauses.count < kSamples) {
    return is_long(section) || planned_step_s_ > 0 ? min : kShortUnlearned_s;
  }
  // One long pause, such as a wait for another rank's save, must not put off detection for hours.
  const double max = std::max({kLong_s, min, 2 * pauses.max_s});
  return std::clamp(kFactor * pauses.max_s, min, max);
}

/// A device works for a whole step while its rank only waits.
double StallWatch::planned_floor_s() const {
  return std::max(kShortFloor_s, kPlannedFactor * planned_step_s_);
}

double StallWatch::stalled_s(int rank) const {
  const auto found = seen_.find(rank);
  return found == seen_.end() ? 0 : found->second.stalled_s;
}

std::vector<Stall> StallWatch::look(Clock::time_point now, std::span<const RankProgress> ranks) {
  // Looks come one period apart; a late one means that this process did not run for a while, and
  // then the ranks may not have run either.
  const double max = 2 * std::chrono::duration<double>(period()).count();
  const double elapsed =
      last_look_ == Clock::time_point{}
          ? 0
          : std::clamp(std::chrono::duration<double>(now - last_look_).count(), 0.0, max);
  last_look_ = now;

  std::vector<Stall> stalls;
  for (const RankProgress& rank : ranks) {
    Seen& seen = seen_[rank.rank];
    seen.stalled_s += elapsed;
    if (rank.progress != seen.progress) {
      if (seen.progress >= 0) {
        Pauses& pauses = pauses_.at(index(seen.section));
        ++pauses.count;
        pauses.max_s = std::max(pauses.max_s, seen.stalled_s);
      }
      seen = {.section = rank.section, .progress = rank.progress};
      continue;
    }
    const double limit = limit_s(rank.section, rank.progress > 0);
    const double repeat = std::clamp(limit / 2, 1.0, kRepeat_s);
    if (seen.stalled_s <= limit || (seen.told_s > 0 && seen.stalled_s < seen.told_s + repeat)) {
      continue;
    }
    seen.told_s = seen.stalled_s;
    stalls.push_back({rank.rank, rank.section, seen.stalled_s, limit});
  }
  return stalls;
}

}  // namespace dstrain::launcher
