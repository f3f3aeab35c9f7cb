// Frames of threads of another process by elfutils' libdw.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/hang/stacks.h"

namespace dstrain::launcher {

/// Fills `frames` of those threads of `process` that are given, and stops each for a moment. Whether
/// any frame was found; `error` says why not.
[[nodiscard]] bool trace_with_libdw(pid_t process, std::vector<ThreadStack>& threads,
                                    std::string& error);

}  // namespace dstrain::launcher
