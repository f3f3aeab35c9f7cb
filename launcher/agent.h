#pragma once

#include <string>

#include "launcher/fd.h"

namespace dstrain::launcher {

/// The process that starts and watches the ranks of one node (`dstrain agent`). Speaks
/// launcher/protocol.h on `in` and `out`; the end of file on `in` ends all ranks. Returns its exit
/// code, which nobody relies on: what matters was sent. Call from the main thread of a process that
/// does nothing else: it forks, blocks signals and reaps every child.
[[nodiscard]] int run_agent(UniqueFd in, UniqueFd out, const std::string& build);

}  // namespace dstrain::launcher
