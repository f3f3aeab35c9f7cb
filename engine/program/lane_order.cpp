#include "engine/program/lane_order.h"

#include <algorithm>

#include "engine/base/index.h"

namespace dstrain {
namespace {

std::size_t lane_index(const Action& action) { return static_cast<std::size_t>(action.lane); }

}  // namespace

LaneOrder::LaneOrder(const std::vector<Action>& actions) : actions_(actions) {
  constexpr int kNone = -1;
  std::array<int, kNumLanes> last;
  last.fill(kNone);
  std::array<int, kNumLanes> count{};
  for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
    const std::size_t lane = lane_index(actions[to_index(i)]);
    position_.push_back(count[lane]++);
    clock_.emplace_back();
    if (last[lane] != kNone) wait_for(i, last[lane]);
    for (const int other : actions[to_index(i)].after) wait_for(i, other);
    last[lane] = i;
  }
}

bool LaneOrder::before(int a, int b) const {
  return clock_[to_index(b)][lane_index(actions_[to_index(a)])] > position_[to_index(a)];
}

void LaneOrder::wait_for(int i, int other) {
  auto& mine = clock_[to_index(i)];
  const auto& theirs = clock_[to_index(other)];
  for (std::size_t lane = 0; lane < kNumLanes; ++lane)
    mine[lane] = std::max(mine[lane], theirs[lane]);
  int& finished = mine[lane_index(actions_[to_index(other)])];
  finished = std::max(finished, position_[to_index(other)] + 1);
}

}  // namespace dstrain
