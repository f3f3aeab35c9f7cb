#pragma once

#include <cstdint>

namespace dstrain::launcher {

/// How often the kernel has killed a process of this process's control group for memory (cgroup v2
/// memory.events, v1 memory.oom_control); -1 where neither can be read. A rise beside a SIGKILL
/// tells an out-of-memory kill from kill -9.
[[nodiscard]] std::int64_t count_oom_kills();

}  // namespace dstrain::launcher
