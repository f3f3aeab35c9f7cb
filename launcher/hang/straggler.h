#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// Finds ranks that are slower than the others at their own work. What a rank does in a step
/// without waiting in collectives is its own; the others wait for the slowest. On a GPU
/// the device measures it, in some of the steps (engine/train/measure/step_timer.h). Ranks are
/// compared with those of their stage of a pipeline, whose work is equal.
class StragglerWatch {
 public:
  /// Takes in what the agent of `host` sent and returns notes for a person: "rank 3 on h2 is slow:
  /// 1.8 x ...". A rank is named when its time is more than 1.5 times the median of the others over
  /// at least 20 steps, at most once in 100 steps.
  [[nodiscard]] std::vector<std::string> add(const PaceMessage& message, const std::string& host);

 private:
  struct Rank {
    std::string host;
    RankPace first;  ///< where the present window began
    RankPace last;
    std::int64_t named_at = -1;  ///< step
  };
  [[nodiscard]] static bool is_complete(const Rank& rank);
  /// O(N log N) in ranks: it runs in the controller's only thread.
  [[nodiscard]] std::vector<std::string> compare();

  std::map<int, Rank> ranks_;
  std::size_t num_complete_ = 0;  ///< ranks whose window is long enough
};

}  // namespace dstrain::launcher
