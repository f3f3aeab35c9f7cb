#include "engine/base/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "engine/base/units.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Value of "NAME:  123 kB" in bytes; 0 without it.
Bytes read_kib(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    return std::strtoll(line.c_str() + name.size(), nullptr, 10) * 1024;
  }
  return 0;
}

constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

/// The number that a file holds; kNoBound without one ("max", no file).
std::int64_t read_number(const fs::path& path) {
  std::int64_t number = 0;
  return std::ifstream(path) >> number ? number : kNoBound;
}

/// Sum of the lines "NAME 123" of `names`.
std::int64_t read_counters(const fs::path& path, const std::array<std::string_view, 2>& names) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0, sum = 0;
  while (file >> name >> value) {
    if (std::ranges::find(names, name) != names.end()) sum += value;
  }
  return sum;
}

/// Where a hierarchy of control groups writes its figures of memory.
struct GroupFiles {
  const char* mount;  ///< below /sys
  const char* limit;
  const char* used;
  std::array<std::string_view, 2> cache;  ///< of memory.stat, with the groups below
};
constexpr GroupFiles kVersion1 = {.mount = "fs/cgroup/memory",
                                  .limit = "memory.limit_in_bytes",
                                  .used = "memory.usage_in_bytes",
                                  .cache = {"total_inactive_file", "total_active_file"}};
constexpr GroupFiles kVersion2 = {.mount = "fs/cgroup",
                                  .limit = "memory.max",
                                  .used = "memory.current",
                                  .cache = {"inactive_file", "active_file"}};

void lower(UsableMemory& usable, std::int64_t bytes, const std::string& bound) {
  if (bytes < usable.bytes) usable = {.bytes = std::max<std::int64_t>(bytes, 0), .bound = bound};
}

/// By the group `below` the mount, and those above it.
void lower_by_groups(UsableMemory& usable, const GroupFiles& files, const fs::path& mount,
                     const fs::path& below) {
  std::error_code ignored;
  // In a container the path is that of the host, while the mount shows the own group at its root.
  const bool shown = std::ranges::find(below, "..") == below.end() && !below.empty() &&
                     fs::is_directory(mount / below, ignored);
  for (fs::path group = shown ? mount / below : mount; true; group = group.parent_path()) {
    // v1 writes 2^63 less a page for none.
    const std::int64_t limit = read_number(group / files.limit);
    const std::int64_t used = read_number(group / files.used);
    if (limit < kNoBound / 2 && used != kNoBound) {
      const std::int64_t cache = read_counters(group / "memory.stat", files.cache);
      lower(usable, limit - std::max<std::int64_t>(used - cache, 0),
            fmt::format("left by the control group {}, which may hold {}", group.string(),
                        format_bytes(limit)));
    }
    if (group == mount) return;
  }
}

}  // namespace

std::int64_t host_resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  file >> all >> resident;
  return file ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

// Not getrusage: a child takes over its parent's ru_maxrss.
std::int64_t host_peak_bytes() { return read_kib("/proc/self/status", "VmHWM:"); }

Error host_memory_error(std::int64_t wanted_bytes) {
  std::string text(kHostOutOfMemory);
  if (wanted_bytes > 0) {
    text += fmt::format(": {} ({} bytes) wanted in one piece", format_bytes(wanted_bytes),
                        wanted_bytes);
  }
  text += fmt::format("; this process has {} in memory",
                      format_bytes(read_kib("/proc/self/status", "VmRSS:")));
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += fmt::format(" and {} of address space, limited to {} (ulimit -v, RLIMIT_AS)",
                        format_bytes(read_kib("/proc/self/status", "VmSize:")),
                        format_bytes(static_cast<Bytes>(limit.rlim_cur)));
  }
  text +=
      fmt::format("; {} are available", format_bytes(read_kib("/proc/meminfo", "MemAvailable:")));
  return {
      ErrorKind::internal, text,
      "fewer ranks or loader threads per host, a smaller model or batch.micro, or a larger limit"};
}

UsableMemory usable_host_memory(const fs::path& proc, const fs::path& sys) {
  UsableMemory usable{.bytes = kNoBound, .bound = "usable"};
  if (const Bytes available = read_kib((proc / "meminfo").c_str(), "MemAvailable:"); available > 0)
    lower(usable, available, "available on this machine");
  std::ifstream groups(proc / "self/cgroup");
  // Lines are "id:controllers:path"; v2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path below = fs::path(line.substr(second + 1)).relative_path();
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",memory,") == std::string::npos) continue;
    const GroupFiles& files = v2 ? kVersion2 : kVersion1;
    lower_by_groups(usable, files, sys / files.mount, below);
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    lower(usable,
          static_cast<Bytes>(limit.rlim_cur) - read_kib((proc / "self/status").c_str(), "VmSize:"),
          "left of this process's address space (ulimit -v, RLIMIT_AS)");
  }
  return usable;
}

}  // namespace dstrain
