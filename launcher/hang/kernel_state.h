#pragma once

#include <sys/types.h>

#include <string>

namespace dstrain::launcher {

/// State of /proc/PID/stat: R, S, D, T, Z, ...; ? when there is no such process.
[[nodiscard]] char process_state(pid_t process);
/// The same of one of its threads.
[[nodiscard]] char thread_state(pid_t process, pid_t thread);

/// What the kernel does for a thread, as /proc tells without stopping it: "read(5: /data/x) in
/// pipe_read", with the state before it when that is D or T. Of a thread that nothing can wake (D),
/// lines with the kernel's own calls follow where we may see them. Empty for one that runs.
[[nodiscard]] std::string describe_kernel(pid_t process, pid_t thread);

}  // namespace dstrain::launcher
