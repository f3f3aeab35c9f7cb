#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/channel.h"

namespace dstrain::launcher {

/// A started agent: the process on this machine that is, or leads to, it, and the channel to it.
struct AgentConnection {
  pid_t pid = -1;
  Channel channel;
};

/// Starts `command` (a program and its arguments, normally this binary as `dstrain agent`) as a
/// child of this process with one end of a socketpair as its standard input and output, in a
/// session of its own, so that Ctrl-C reaches the controller alone. Its standard error stays ours.
[[nodiscard]] AgentConnection start_local_agent(const std::vector<std::string>& command);

}  // namespace dstrain::launcher
