#include "launcher/oom.h"

#include <fstream>
#include <string>

namespace dstrain::launcher {
namespace {

std::int64_t read_counter(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return -1;
}

}  // namespace

std::int64_t count_oom_kills() {
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  std::int64_t count = -1;
  // Lines are "id:controllers:path"; v2 has no controllers.
  while (std::getline(groups, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    std::int64_t found = -1;
    if (controllers.empty()) {
      found = read_counter("/sys/fs/cgroup" + path + "/memory.events");
      // In a container the path is that of the host, while the mount shows the container's own
      // group at its root.
      if (found < 0) found = read_counter("/sys/fs/cgroup/memory.events");
    } else if (controllers == "memory") {
      found = read_counter("/sys/fs/cgroup/memory" + path + "/memory.oom_control");
      if (found < 0) found = read_counter("/sys/fs/cgroup/memory/memory.oom_control");
    }
    if (found > count) count = found;
  }
  return count;
}

}  // namespace dstrain::launcher
