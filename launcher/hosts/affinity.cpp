#include "launcher/hosts/affinity.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;
using Cpus = std::vector<int>;

struct Gpu {
  std::string bus_id;  ///< as in sys/bus/pci/devices
  std::string uuid;
  std::string model;
};

/// Those that CUDA can open: the driver lists every GPU of the machine also in a container that was
/// given some of the device nodes only. By bus address.
std::vector<Gpu> installed_gpus(const SystemRoots& roots) {
  std::vector<Gpu> gpus;
  const fs::path folder = roots.proc / "driver" / "nvidia" / "gpus";
  for (const std::string& name : list_names(folder)) {
    const fs::path file = folder / name / "information";
    Gpu gpu{.bus_id = read_field(file, "Bus Location"),
            .uuid = read_field(file, "GPU UUID"),
            .model = read_field(file, "Model")};
    if (gpu.bus_id.empty()) gpu.bus_id = name;
    const std::string minor = read_field(file, "Device Minor");
    std::error_code error;
    if (minor.empty() || fs::exists(roots.dev / ("nvidia" + minor), error)) gpus.push_back(gpu);
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const Gpu& a, const Gpu& b) { return a.bus_id < b.bus_id; });
  return gpus;
}

/// In CUDA's order; ends at the first entry that names none, as CUDA does. MIG slices are not told
/// apart: nothing.
std::optional<std::vector<Gpu>> visible_gpus(const std::vector<Gpu>& installed,
                                             const std::optional<std::string>& list) {
  if (!list) return installed;
  std::vector<Gpu> visible;
  std::string_view rest = *list;
  while (true) {
    const auto comma = rest.find(',');
    std::string_view entry = rest.substr(0, comma);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    if (entry.starts_with("MIG-")) return std::nullopt;
    const auto found =
        entry.starts_with("GPU-")
            ? std::find_if(installed.begin(), installed.end(),
                           [&](const Gpu& gpu) { return gpu.uuid.starts_with(entry); })
            : [&] {
                const long long index = to_number(entry, -1);
                const bool known = index >= 0 && index < static_cast<long long>(installed.size());
                return known ? installed.begin() + index : installed.end();
              }();
    if (found == installed.end()) return visible;
    visible.push_back(*found);
    if (comma == std::string_view::npos) return visible;
    rest.remove_prefix(comma + 1);
  }
}

Cpus intersect(const Cpus& a, const Cpus& b) {
  Cpus both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

/// NUMA node -> its CPUs, offline ones not listed.
std::map<int, Cpus> numa_nodes(const SystemRoots& roots) {
  std::map<int, Cpus> nodes;
  const fs::path folder = roots.sys / "devices" / "system" / "node";
  for (const std::string& name : list_names(folder)) {
    if (!name.starts_with("node")) continue;
    const long long index = to_number(std::string_view(name).substr(4), -1);
    Cpus cpus = parse_cpu_list(read_first_line(folder / name / "cpulist"));
    // Nodes of memory alone (CXL, a GPU's own) have none.
    if (index >= 0 && !cpus.empty()) nodes[static_cast<int>(index)] = std::move(cpus);
  }
  return nodes;
}

/// NUMA node of a GPU; -1: not known. Firmware that leaves numa_node at -1 may still give the CPUs.
int node_of(const Gpu& gpu, const std::map<int, Cpus>& nodes, const SystemRoots& roots) {
  const fs::path device = roots.sys / "bus" / "pci" / "devices" / gpu.bus_id;
  const long long node = to_number(read_first_line(device / "numa_node"), -1);
  if (nodes.contains(static_cast<int>(node))) return static_cast<int>(node);
  const Cpus local = parse_cpu_list(read_first_line(device / "local_cpulist"));
  for (const auto& [index, cpus] : nodes) {
    if (!local.empty() && intersect(local, cpus).size() == local.size()) return index;
  }
  return -1;
}

/// `cpus` as cores, each with its hyperthreads, by first CPU.
std::vector<Cpus> split_cores(const Cpus& cpus, const SystemRoots& roots) {
  std::map<int, Cpus> cores;
  for (const int cpu : cpus) {
    const fs::path topology =
        roots.sys / "devices" / "system" / "cpu" / fmt::format("cpu{}", cpu) / "topology";
    const Cpus siblings = parse_cpu_list(read_first_line(topology / "thread_siblings_list"));
    cores[siblings.empty() ? cpu : siblings.front()].push_back(cpu);
  }
  std::vector<Cpus> list;
  for (auto& [first, core] : cores) list.push_back(std::move(core));
  return list;
}

struct Node {
  std::vector<Cpus> cores;     ///< allowed ones
  std::vector<int> rank_list;  ///< local ranks
};

Affinity unbound(std::string reason) {
  Affinity affinity;
  affinity.reason = std::move(reason);
  return affinity;
}

/// Cores of a node to its ranks in consecutive parts; CPUs when there are fewer cores than ranks.
void share(const Node& node, int index, Affinity& affinity) {
  const auto ranks = node.rank_list.size();
  if (ranks == 0) return;
  std::vector<Cpus> parts = node.cores;
  if (parts.size() < ranks) {
    parts.clear();
    for (const Cpus& core : node.cores) {
      for (const int cpu : core) parts.push_back({cpu});
    }
  }
  for (std::size_t i = 0; i < ranks; ++i) {
    const auto local_rank = static_cast<std::size_t>(node.rank_list[i]);
    Cpus& cpus = affinity.cpus[local_rank];
    for (std::size_t part = i * parts.size() / ranks; part < (i + 1) * parts.size() / ranks; ++part)
      cpus.insert(cpus.end(), parts[part].begin(), parts[part].end());
    std::sort(cpus.begin(), cpus.end());
    affinity.numa_nodes[local_rank] = index;
  }
}

}  // namespace

AffinityRequest affinity_request(int num_ranks, const Variables& variables) {
  AffinityRequest request;
  request.num_ranks = num_ranks;
  if (const char* visible = variables("CUDA_VISIBLE_DEVICES")) request.visible_devices = visible;
  const char* order = variables("CUDA_DEVICE_ORDER");
  request.pci_order = order != nullptr && std::string_view(order) == "PCI_BUS_ID";
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) request.allowed.push_back(cpu);
    }
  }
  return request;
}

Affinity plan_affinity(const AffinityRequest& request, const SystemRoots& roots) {
  const std::vector<Gpu> installed = installed_gpus(roots);
  if (installed.empty()) return unbound("no GPU");
  const bool mixed = std::any_of(installed.begin(), installed.end(), [&](const Gpu& gpu) {
    return gpu.model != installed.front().model;
  });
  // CUDA's own order puts the fastest first, and keeps bus order among equals.
  if (mixed && !request.pci_order) {
    return unbound(
        "GPUs of several kinds, whose order only CUDA_DEVICE_ORDER=PCI_BUS_ID would fix");
  }
  const auto visible = visible_gpus(installed, request.visible_devices);
  if (!visible) return unbound("CUDA_VISIBLE_DEVICES names MIG slices");
  if (visible->empty()) return unbound("no visible GPU");
  if (static_cast<int>(visible->size()) < request.num_ranks) return unbound("more ranks than GPUs");

  std::map<int, Node> nodes;
  const std::map<int, Cpus> system = numa_nodes(roots);
  for (const auto& [index, cpus] : system) {
    const Cpus allowed = intersect(cpus, request.allowed);
    if (!allowed.empty()) nodes[index].cores = split_cores(allowed, roots);
  }
  if (nodes.size() < 2) return unbound("all usable CPUs are on one NUMA node");

  std::vector<int> displaced;
  for (int local_rank = 0; local_rank < request.num_ranks; ++local_rank) {
    const Gpu& gpu = (*visible)[static_cast<std::size_t>(local_rank)];
    const int node = node_of(gpu, system, roots);
    if (node < 0) return unbound(fmt::format("the NUMA node of GPU {} is not known", gpu.bus_id));
    if (nodes.contains(node)) {
      nodes[node].rank_list.push_back(local_rank);
    } else {
      displaced.push_back(local_rank);
    }
  }
  for (const int local_rank : displaced) {
    const auto room = [](const auto& node) {
      return static_cast<double>(node.second.cores.size()) /
             static_cast<double>(node.second.rank_list.size() + 1);
    };
    auto best = nodes.begin();
    for (auto node = nodes.begin(); node != nodes.end(); ++node) {
      if (room(*node) > room(*best)) best = node;
    }
    best->second.rank_list.push_back(local_rank);
  }

  Affinity affinity;
  affinity.cpus.resize(static_cast<std::size_t>(request.num_ranks));
  affinity.numa_nodes.resize(affinity.cpus.size(), -1);
  for (auto& [index, node] : nodes) {
    std::sort(node.rank_list.begin(), node.rank_list.end());
    std::size_t num_cpus = 0;
    for (const Cpus& core : node.cores) num_cpus += core.size();
    if (num_cpus < node.rank_list.size()) {
      return unbound(fmt::format("{} CPUs of NUMA node {} for {} ranks", num_cpus, index,
                                 node.rank_list.size()));
    }
    share(node, index, affinity);
  }
  if (!displaced.empty()) {
    affinity.reason =
        fmt::format("the CPUs near the GPU{} of local rank{} {} are not allowed to this job",
                    displaced.size() == 1 ? "" : "s", displaced.size() == 1 ? "" : "s",
                    format_cpu_list(displaced));
  }
  return affinity;
}

std::string describe(const Affinity& affinity) {
  if (affinity.cpus.empty()) return "ranks are not bound to CPUs: " + affinity.reason;
  std::string text;
  for (std::size_t i = 0; i < affinity.cpus.size(); ++i) {
    text += fmt::format("{}local rank {}: cpus {} (NUMA node {})", i == 0 ? "" : "; ", i,
                        format_cpu_list(affinity.cpus[i]), affinity.numa_nodes[i]);
  }
  if (!affinity.reason.empty()) text += "; " + affinity.reason;
  return text;
}

bool bind_to_cpus(std::span<const int> cpus) {
  if (cpus.empty()) return true;
  // Larger than cpu_set_t, which ends at 1024 CPUs.
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 8192 / kBits> mask{};
  for (const int cpu : cpus) {
    const auto bit = static_cast<std::size_t>(cpu);
    if (cpu >= 0 && bit < mask.size() * kBits) mask[bit / kBits] |= 1UL << (bit % kBits);
  }
  return ::syscall(SYS_sched_setaffinity, 0, sizeof mask, mask.data()) == 0;
}

}  // namespace dstrain::launcher
