#include "launcher/doctor/inspect.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "engine/base/user_folders.h"
#include "launcher/doctor/engine_probe.h"
#include "launcher/doctor/gpu_health.h"
#include "launcher/hosts/machine.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLoadLimit{60};  ///< cold LibTorch on a network disk is slow
constexpr std::size_t kMaxEvents = 20;

std::string system_name() {
  std::ifstream file("/etc/os-release");
  constexpr std::string_view kName = "PRETTY_NAME=\"";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kName) && line.ends_with('"'))
      return line.substr(kName.size(), line.size() - kName.size() - 1);
  }
  return {};
}

/// "MemTotal" of /proc/meminfo, which counts in KiB.
std::int64_t read_memory(const SystemRoots& roots, std::string_view name) {
  std::string text = read_field(roots.proc / "meminfo", name);
  if (text.ends_with(" kB")) text.resize(text.size() - 3);
  const long long kib = to_number(text, -1);
  return kib < 0 ? -1 : kib * 1024;
}

/// The smallest limit of `folder` and the groups above it, up to `top`; -1: none.
std::int64_t read_limit(const fs::path& top, fs::path folder, const char* file) {
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // v1 writes 2^63 less a page
  std::int64_t min = kNoLimit;
  while (true) {
    const long long limit = to_number(read_first_line(folder / file), kNoLimit);
    if (limit > 0) min = std::min<std::int64_t>(min, limit);
    if (folder == top || !folder.has_relative_path() || folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  return min == kNoLimit ? -1 : min;
}

std::int64_t memory_limit(const SystemRoots& roots) {
  std::ifstream groups(roots.proc / "self" / "cgroup");
  const fs::path v2 = roots.sys / "fs" / "cgroup";
  const fs::path v1 = v2 / "memory";
  std::int64_t limit = -1;
  // Lines are "id:controllers:path"; v2 has no controllers.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    path.erase(0, path.find_first_not_of('/'));
    std::int64_t found = -1;
    if (controllers.empty()) found = read_limit(v2, path.empty() ? v2 : v2 / path, "memory.max");
    if (controllers == "memory")
      found = read_limit(v1, path.empty() ? v1 : v1 / path, "memory.limit_in_bytes");
    if (found >= 0) limit = limit < 0 ? found : std::min(limit, found);
  }
  return limit;
}

std::int64_t read_resource(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

DiskFacts read_disk(const std::string& purpose, const fs::path& path) {
  DiskFacts disk{.purpose = purpose, .path = path.string()};
  std::error_code error;
  disk.exists = fs::is_directory(path, error);
  fs::path shown = path;
  // A folder that will be made later lies on the disk of the first one that is there.
  while (!fs::exists(shown, error) && shown.has_relative_path()) shown = shown.parent_path();
  struct statvfs figures {};
  if (::statvfs(shown.c_str(), &figures) == 0) {
    const auto block = static_cast<std::int64_t>(figures.f_frsize);
    disk.free_bytes = static_cast<std::int64_t>(figures.f_bavail) * block;
    disk.total_bytes = static_cast<std::int64_t>(figures.f_blocks) * block;
  }
  return disk;
}

std::vector<RdmaPort> read_rdma(const SystemRoots& roots) {
  std::vector<RdmaPort> list;
  const fs::path folder = roots.sys / "class" / "infiniband";
  for (const std::string& device : list_names(folder)) {
    for (const std::string& number : list_names(folder / device / "ports")) {
      const fs::path port = folder / device / "ports" / number;
      std::string state = read_first_line(port / "state");  // "4: ACTIVE"
      if (const auto colon = state.find(": "); colon != std::string::npos)
        state.erase(0, colon + 2);
      list.push_back({device + ":" + number, state, read_first_line(port / "rate")});
    }
  }
  return list;
}

int count_numa_nodes(const SystemRoots& roots) {
  int count = 0;
  for (const std::string& name : list_names(roots.sys / "devices" / "system" / "node")) {
    if (name.starts_with("node") && to_number(std::string_view(name).substr(4), -1) >= 0) ++count;
  }
  return std::max(count, 1);
}

}  // namespace

Inspection inspect(const InspectOptions& options) {
  const SystemRoots& roots = options.roots;
  Inspection found;
  const Machine machine = probe_machine();
  found.host = machine.host;
  found.build = options.build;
  found.system = system_name();
  utsname system{};
  if (::uname(&system) == 0) {
    found.kernel = std::string(system.sysname) + " " + system.release;
    found.arch = system.machine;
  }
  found.cores = machine.cores;
  found.cores_installed = static_cast<int>(
      parse_cpu_list(read_first_line(roots.sys / "devices" / "system" / "cpu" / "online")).size());
  found.cores_installed = std::max(found.cores_installed, machine.cores);
  found.numa_nodes = count_numa_nodes(roots);
  found.memory_bytes = read_memory(roots, "MemTotal");
  found.available_bytes = read_memory(roots, "MemAvailable");
  found.memory_limit_bytes = memory_limit(roots);
  found.locked_bytes = read_resource(RLIMIT_MEMLOCK);
  found.open_files = read_resource(RLIMIT_NOFILE);
  found.shm_bytes = read_disk("", roots.dev / "shm").total_bytes;
  found.disks.push_back(read_disk("working directory", options.working_directory));
  if (const fs::path cache = user_cache_folder(::getenv); !cache.empty())
    found.disks.push_back(read_disk("cache", cache));

  found.gpu_nodes = count_gpu_nodes(roots.dev);
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) found.visible_devices = visible;
  found.gpus_visible = count_visible_gpus(found.gpu_nodes, found.visible_devices);
  GpuHealth health = read_gpu_health();
  found.driver = health.driver;
  found.driver_cuda = health.driver_cuda;
  found.gpus = std::move(health.gpus);
  if (found.gpu_nodes > 0) found.gpu_events = read_gpu_events(kMaxEvents);

  found.interfaces = list_interfaces(roots);
  if (!options.peer_address.empty()) found.route = interface_towards(options.peer_address, roots);
  found.rdma = read_rdma(roots);
  std::error_code error;
  found.peermem = fs::exists(roots.sys / "module" / "nvidia_peermem", error);
  found.ptrace_scope = static_cast<int>(
      to_number(read_first_line(roots.proc / "sys" / "kernel" / "yama" / "ptrace_scope"), -1));
  if (!options.engine_library.empty())
    found.engine = probe_engine(options.engine_library, options.build, kLoadLimit);
  found.clock_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  return found;
}

}  // namespace dstrain::launcher
