#include "engine/program/lane_order.h"

#include <algorithm>

#include "engine/base/index.h"

namespace dstrain {
namespace {

std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

}  // namespace

LaneOrder::LaneOrder(std::span<const Action> actions, int runs) {
  constexpr int kNone = -1;
  const auto count = static_cast<int>(actions.size());
  std::array<int, kNumLanes> last;
  last.fill(kNone);
  std::array<int, kNumLanes> on_lane{};
  for (int i = 0; i < runs * count; ++i) {
    const Action& action = actions[to_index(i % count)];
    const std::size_t lane = index_of(action.lane);
    const int first = i / count * count;
    lanes_.push_back(action.lane);
    position_.push_back(on_lane[lane]++);
    clock_.emplace_back();
    if (last[lane] != kNone) wait_for(i, last[lane]);
    for (const int other : action.after) wait_for(i, first + other);
    if (first > 0) {
      for (const int other : action.after_previous) wait_for(i, first - count + other);
    }
    last[lane] = i;
  }
}

bool LaneOrder::before(int a, int b) const {
  return clock_[to_index(b)][index_of(lanes_[to_index(a)])] > position_[to_index(a)];
}

void LaneOrder::wait_for(int i, int other) {
  auto& mine = clock_[to_index(i)];
  const auto& theirs = clock_[to_index(other)];
  for (std::size_t lane = 0; lane < kNumLanes; ++lane)
    mine[lane] = std::max(mine[lane], theirs[lane]);
  int& finished = mine[index_of(lanes_[to_index(other)])];
  finished = std::max(finished, position_[to_index(other)] + 1);
}

}  // namespace dstrain
