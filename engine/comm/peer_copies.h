#pragma once

#include <memory>

#include "engine/base/units.h"
#include "engine/comm/communicator.h"
#include "engine/comm/group.h"

namespace dstrain::comm {

/// `inner` with all_gather, reduce_scatter and sums by copies between the GPUs of a host: copy
/// engines move the parts, stream memory operations say when they are there, and one warp of the
/// caller's stream waits for that (with waits_long the stream itself), so other kernels keep the
/// multiprocessors, and `meanwhile` runs while parts travel. Sums are taken in fp32, in rank order.
/// Whole tensors of up to copied_bytes go in one piece. Callers' streams, if there are several,
/// wait for each other. Collective over the group; `inner` itself where its GPUs cannot reach each
/// other so.
[[nodiscard]] std::unique_ptr<Communicator> with_peer_copies(std::unique_ptr<Communicator> inner,
                                                             Store& store, const Group& group,
                                                             const CommunicatorOptions& options);

}  // namespace dstrain::comm
