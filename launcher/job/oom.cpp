#include "launcher/job/oom.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

/// Value of the line "name value"; -1 without it.
std::int64_t read_counter(const fs::path& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  std::string value;
  while (file >> name >> value) {
    if (name == wanted) return to_number(value, -1);
  }
  return -1;
}

/// A control group of this process, as far as it has to do with memory.
struct MemoryGroup {
  fs::path mount;   ///< of its hierarchy
  fs::path folder;  ///< below `mount`; equal to it where a container shows its own group there
  bool v2 = false;
};

std::vector<MemoryGroup> memory_groups(const SystemRoots& roots) {
  std::vector<MemoryGroup> found;
  std::ifstream groups(roots.proc / "self/cgroup");
  std::string line;
  // Lines are "id:controllers:path"; v2 has no controllers.
  while (std::getline(groups, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path below = fs::path(line.substr(second + 1)).relative_path();
    if (!controllers.empty() && controllers != "memory") continue;
    const bool v2 = controllers.empty();
    const fs::path mount = roots.sys / (v2 ? "fs/cgroup" : "fs/cgroup/memory");
    std::error_code error;
    // In a container the path is that of the host, while the mount shows the container's own group
    // at its root.
    const bool shown = fs::exists(mount / below, error);
    found.push_back({.mount = mount, .folder = shown ? mount / below : mount, .v2 = v2});
  }
  return found;
}

}  // namespace

std::int64_t count_oom_kills(const SystemRoots& roots) {
  std::int64_t count = -1;
  for (const MemoryGroup& group : memory_groups(roots)) {
    const char* file = group.v2 ? "memory.events" : "memory.oom_control";
    count = std::max(count, read_counter(group.folder / file, "oom_kill"));
  }
  return count >= 0 ? count : read_counter(roots.proc / "vmstat", "oom_kill");
}

std::int64_t memory_limit_bytes(const SystemRoots& roots) {
  const std::string total = read_field(roots.proc / "meminfo", "MemTotal");
  std::int64_t limit = to_number(total.substr(0, total.find(' ')), 0) * 1024;
  const auto lower = [&limit](std::int64_t bytes) {
    if (bytes > 0 && (limit == 0 || bytes < limit)) limit = bytes;
  };
  for (const MemoryGroup& group : memory_groups(roots)) {
    if (!group.v2) {
      lower(read_counter(group.folder / "memory.stat", "hierarchical_memory_limit"));
      continue;
    }
    for (fs::path folder = group.folder; true; folder = folder.parent_path()) {
      lower(to_number(read_first_line(folder / "memory.max"), -1));  // "max": none
      if (folder == group.mount) break;
    }
  }
  return limit;
}

}  // namespace dstrain::launcher
