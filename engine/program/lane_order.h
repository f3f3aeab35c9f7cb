#pragma once

#include <array>
#include <vector>

#include "engine/program/program.h"

namespace dstrain {

/// Which actions have finished when another starts, whatever the lanes' speeds: what lanes and
/// `after` guarantee, transitively. A vector clock per action (Fidge 1988, Mattern 1989), with one
/// entry per lane.
class LaneOrder {
 public:
  /// Every `after` must point back in the list. Keeps a reference to `actions`.
  explicit LaneOrder(const std::vector<Action>& actions);

  /// Action `a` has finished when `b` starts.
  [[nodiscard]] bool before(int a, int b) const;

 private:
  void wait_for(int i, int other);

  const std::vector<Action>& actions_;
  std::vector<int> position_;                      ///< on its lane
  std::vector<std::array<int, kNumLanes>> clock_;  ///< finished actions of each lane when it starts
};

}  // namespace dstrain
