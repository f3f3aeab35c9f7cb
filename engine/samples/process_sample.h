#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dstrain {

/// What some processes use together. Pages that they share count once for each of them, as ps and
/// psrecord do.
struct ProcessSample {
  double cpu_s = 0;  ///< user and system time of those that live
  std::int64_t resident_bytes = 0;
  std::int64_t virtual_bytes = 0;
};

/// The ranks of this job on this machine: the processes with this one's parent and program, and all
/// that they have started.
[[nodiscard]] std::vector<pid_t> rank_processes();
[[nodiscard]] ProcessSample sample_processes(const std::vector<pid_t>& processes);

/// Lines of psrecord's log.
namespace cpu_log {
inline constexpr const char* kHeader = "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n";
/// `cpu_share`: of one core, in %.
[[nodiscard]] std::string line(double elapsed_s, double cpu_share, const ProcessSample& sample);
}  // namespace cpu_log

}  // namespace dstrain
