#pragma once

#include <cstdint>

#include "engine/base/system_files.h"

namespace dstrain::launcher {

/// How often the kernel has killed a process of this process's control group for memory (cgroup v2
/// memory.events, v1 memory.oom_control), or anywhere on this machine where the group cannot be
/// read; -1 where neither can be. A rise beside a SIGKILL tells an out-of-memory kill from kill -9.
[[nodiscard]] std::int64_t count_oom_kills(const SystemRoots& roots = {});

/// What this process and its children may take together: the smallest limit of its control group
/// and those above, else the machine's memory; 0: unknown.
[[nodiscard]] std::int64_t memory_limit_bytes(const SystemRoots& roots = {});

}  // namespace dstrain::launcher
