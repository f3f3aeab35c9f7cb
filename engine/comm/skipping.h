#pragma once

#include <atomic>
#include <memory>

#include "engine/comm/communicator.h"

namespace dstrain::comm {

/// Passes calls on to `inner`. While `skips` is true, collectives return at once and leave their
/// outputs as they are; work that was to go on meanwhile is done. Sends, receives and barriers are
/// passed on always.
[[nodiscard]] std::unique_ptr<Communicator> make_skipping(
    std::unique_ptr<Communicator> inner, std::shared_ptr<const std::atomic<bool>> skips);

}  // namespace dstrain::comm
