#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/comm/group.h"
#include "engine/comm/peer_memory.h"

namespace dstrain::comm {

/// `inner` with all_gather, reduce_scatter and sums by copies between the GPUs of a host: copy
/// engines move the parts, stream memory operations say when they are there, and one warp of the
/// caller's stream waits for that (with waits_long the stream itself), so other kernels keep the
/// multiprocessors, and `meanwhile` runs while parts travel. Sums are taken in fp32, in rank order.
/// Parts of up to memory->capacity() go in one piece; with waits_long, for which the memory must be
/// acknowledged, the next piece travels while this one waits to be read. One stream calls it, or
/// each begins when the one before it is done. Everything else, and without waits_long small parts,
/// goes to `inner`.
[[nodiscard]] std::unique_ptr<Communicator> with_peer_copies(std::unique_ptr<Communicator> inner,
                                                             std::unique_ptr<PeerMemory> memory,
                                                             const Group& group, bool waits_long);

}  // namespace dstrain::comm
