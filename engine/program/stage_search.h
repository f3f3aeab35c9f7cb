#pragma once

#include <vector>

#include "engine/program/schedules/schedule.h"

namespace dstrain {

/// What a cut is chosen by, in any unit of time and of memory.
struct StageCosts {
  std::vector<ChunkCost> blocks;  ///< a block that does not split its backward: weight 0
  double transfer = 0;            ///< from a rank to another one
  std::vector<double> limits;     ///< memory of each rank; empty: none
};
/// Cost of the chunks that the blocks are cut into.
[[nodiscard]] LineCost line_cost(const Stages& stages, const StageCosts& costs);

/// A pipeline's cut and the order of its visits.
struct CutSchedule {
  Stages stages;
  PipelineSchedule visits;
  double makespan = 0;
};

/// The schedule on that cut.
[[nodiscard]] CutSchedule schedule_cut(ScheduleName name, Stages stages, int micro_batches,
                                       const StageCosts& costs);
/// Chunks on the ranks that `rank` names: from the cut whose dearest chunk costs least, blocks move
/// from one chunk to another as long as the visits end sooner, at most `moves` tries in a fixed
/// order.
inline constexpr int kMaxMoves = 300;
[[nodiscard]] CutSchedule search_cut(ScheduleName name, const std::vector<int>& rank,
                                     int micro_batches, const StageCosts& costs,
                                     int moves = kMaxMoves);

}  // namespace dstrain
