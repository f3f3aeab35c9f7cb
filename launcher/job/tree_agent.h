#pragma once

#include <string>

#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// `dstrain agent --tree`: reads a TreeOrder (launcher/protocol/protocol.h) from `in`, starts the
/// agents that it names by ssh and tells on `out` which could not be; then becomes the agent of
/// this host, on these streams or, when the order gives it a name, on a connection that it dials.
/// An agent that was welcomed leaves its ssh session, so that the end of its starter is not its
/// own; until then the end of `in` ends it and what it has started. Error{hosts} when there is
/// nothing to serve.
[[nodiscard]] int run_tree_agent(UniqueFd in, UniqueFd out, std::string build);

}  // namespace dstrain::launcher
