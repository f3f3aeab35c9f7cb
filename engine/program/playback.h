#pragma once

#include <functional>
#include <vector>

#include "engine/program/media.h"
#include "engine/program/program.h"

namespace dstrain {

/// The last of several runs of a program.
struct Playback {
  double step_s = 0;  ///< from the end of one run's compute lane to that of the next
  double compute_s = 0;
  double exposed_comm_s = 0;
  std::vector<double> start_s, end_s;  ///< by action, since the run before has left that lane
};

/// Plays runs of the program event by event: whenever an action starts or ends, those that run then
/// share the media anew. `product_share` as in share_media.
[[nodiscard]] Playback play_runs(const Program& program,
                                 const std::function<Demand(const Action&)>& demand_of,
                                 double product_share);

}  // namespace dstrain
