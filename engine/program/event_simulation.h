#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/resources.h"

namespace dstrain {

/// The last of several runs of a program, one of those that run beside each other.
struct SimulatedRun {
  double step_s = 0;  ///< from the end of one run's compute lane to that of the next
  double compute_s = 0;
  double exposed_comm_s = 0;
  double bubble_s = 0;                 ///< waits for other ranks of the line
  std::vector<double> start_s, end_s;  ///< by action, since the run before has left that lane
};

/// Demand of an action on a rank of the line.
using DemandOf = std::function<Demand(std::size_t rank, const Action&)>;

/// Plays runs of the programs of a line event by event: whenever an action starts or ends, those
/// that run then on its rank share the resources anew. Transfers begin when both ends have come to
/// them, collectives of all ranks when all have; a program alone waits for no rank.
/// `product_share` as in share_resources.
[[nodiscard]] std::vector<SimulatedRun> simulate_runs(std::span<const Program> line,
                                              const DemandOf& demand_of, double product_share);

}  // namespace dstrain
