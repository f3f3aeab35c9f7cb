#pragma once

#include <vector>

#include "engine/program/cost.h"
#include "engine/program/program.h"

namespace dstrain {

/// Actions of one of the lanes that run blocks that nothing on another lane comes between, so that
/// a CUDA graph can hold them: all that they wait for is enqueued before the first, and none but
/// the last is waited for. All are of one phase, so that a step can be timed between graphs.
struct Segment {
  std::vector<int> actions;  ///< indices of the program, in order
};

/// The segments of forward, recompute, clear, backward and release, each with the work of at least
/// one block, and the collectives of sequence ranks inside it, and of tensor ranks where two
/// micro-batches run at once. Other collectives are in none, nor are norm and updates, whose work
/// changes from step to step.
[[nodiscard]] std::vector<Segment> find_segments(const Program& program);

/// Whether graphs pay: the host has to record each segment of the step, once for each phase of the
/// batch buffers, and keep it. Never where a block exchanges with other ranks than those or reads
/// on the host (BlockCost::host_reads): it runs without a graph, and would not see what a graph
/// returns. Nor under a pipeline: recording waits for the whole device, where a receive may wait
/// for this rank. Nor beside transient slots, which lie in the memory that graphs would keep.
[[nodiscard]] bool worth_recording(const Program& program, const ModelCost& cost);

}  // namespace dstrain
