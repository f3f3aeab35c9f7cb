#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/comm/shared_memory.h"

namespace dstrain::comm {

/// `gloo` with sums, all_gather and reduce_scatter through memory that the ranks of a host share.
/// Sums have the bits that Gloo's have (a ring of segments). Everything else goes to `gloo`.
[[nodiscard]] std::unique_ptr<Communicator> with_shared_memory(std::unique_ptr<Communicator> gloo,
                                                               std::unique_ptr<SharedMemory> memory,
                                                               const Group& group);

}  // namespace dstrain::comm
