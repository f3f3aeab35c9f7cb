#pragma once

#include <array>
#include <span>
#include <vector>

#include "engine/program/program.h"

namespace dstrain {

/// Which actions have finished when another starts, whatever the lanes' speeds: what lanes, `after`
/// and `after_previous` guarantee, transitively. A vector clock per action (Fidge 1988, Mattern
/// 1989), with one entry per lane.
class LaneOrder {
 public:
  /// As many runs, one after the other: action i of run r is number r * actions.size() + i.
  /// Every `after` must point back in the list.
  LaneOrder(std::span<const Action> actions, int runs);

  /// Action `a` has finished when `b` starts.
  [[nodiscard]] bool before(int a, int b) const;

 private:
  void wait_for(int i, int other);

  std::vector<Lane> lanes_;
  std::vector<int> position_;                      ///< on its lane
  std::vector<std::array<int, kNumLanes>> clock_;  ///< finished actions of each lane when it starts
};

}  // namespace dstrain
