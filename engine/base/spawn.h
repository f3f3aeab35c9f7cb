#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace dstrain {

/// Standard streams of a program: a descriptor that stays the caller's, or -1 for /dev/null.
struct StandardStreams {
  int in = -1;
  int out = -1;
  int error = -1;
};

/// Starts command[0], searched in PATH where it names no folder, in a session of its own, so that
/// Ctrl-C does not reach it, with default signals and no other descriptor. By posix_spawn, since
/// this process may have threads. The caller waits for it. Returns -1 with errno set when it cannot
/// be started.
[[nodiscard]] pid_t spawn_program(std::vector<std::string> command, const StandardStreams& streams);

}  // namespace dstrain
