#pragma once

#include <functional>
#include <memory>

#include "engine/comm/communicator.h"
#include "engine/comm/group.h"

namespace dstrain::comm {

/// Calls `open` when the first operation comes, on all ranks of the group in the same one. Not for
/// operations that a CUDA graph records first.
[[nodiscard]] std::unique_ptr<Communicator> make_deferred(
    const Group& group, std::function<std::unique_ptr<Communicator>()> open);

}  // namespace dstrain::comm
