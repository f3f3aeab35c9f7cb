#pragma once

#include <cstddef>
#include <vector>

#include "engine/program/layout.h"
#include "engine/program/schedules/schedule.h"

namespace dstrain {

/// One stay of the compute lane in a block.
struct Visit {
  int block = 0;
  int micro_batch = 0;
  Pass pass = Pass::forward;
  std::size_t stay = 0;  ///< of the rank, in its list of chunk visits
};

/// The block computes the gradients of its matrices apart from the others where a schedule asks for
/// it: it can hold what they need, and they need not go through a slot.
[[nodiscard]] bool splits_backward(const BlockCost& block, const Layout& layout);

/// The blocks of `visits`, backward ones down to `first_trained`. The backward of a block that does
/// not split it comes with the gradients of the inputs.
[[nodiscard]] std::vector<Visit> block_visits(const std::vector<ChunkVisit>& visits,
                                              const Layout& layout, const ModelCost& cost,
                                              int first_trained);

/// The same visits, those of each two micro-batches in turn: block after block, the first one's and
/// then the second one's. `visits` run one micro-batch after the other.
[[nodiscard]] std::vector<Visit> two_at_once(const std::vector<Visit>& visits);

/// What coordinate `coordinate` receives, in the order in which the other ranks send it, and after
/// how many of its own visits at the latest it should begin to.
struct Arrival {
  int from = -1;   ///< coordinate
  int block = -1;  ///< whose output, or the gradient of it
  int micro_batch = -1;
  bool gradient = false;
  std::size_t visit = 0;  ///< place in the coordinate's list of chunk visits
};
/// As if all chunks cost the same: an order of all visits of the line, to which all ranks keep, so
/// that they never wait for each other.
[[nodiscard]] std::vector<Arrival> arrivals(const PipelineSchedule& schedule, const Stages& stages,
                                            int blocks, int first_trained, int coordinate);

/// The first block that trains anything; the backward pass ends there. Error{internal} when there
/// is none.
[[nodiscard]] int first_trained_block(const ModelCost& cost);

}  // namespace dstrain
