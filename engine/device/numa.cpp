#include "engine/device/numa.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <thread>

#include "engine/base/index.h"
#include "engine/base/system_files.h"

namespace dstrain {
namespace {

/// Cores that a set can name: the kernel refuses sets smaller than its own.
constexpr int kMaxCores = 8192;

class CoreSet {
 public:
  CoreSet() : set_(CPU_ALLOC(kMaxCores), [](cpu_set_t* set) { CPU_FREE(set); }) {
    CPU_ZERO_S(bytes(), get());
  }
  [[nodiscard]] cpu_set_t* get() const { return set_.get(); }
  [[nodiscard]] static std::size_t bytes() { return CPU_ALLOC_SIZE(kMaxCores); }
  [[nodiscard]] bool holds(int core) const { return CPU_ISSET_S(to_index(core), bytes(), get()); }
  void add(int core) { CPU_SET_S(to_index(core), bytes(), get()); }

 private:
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set_;
};

}  // namespace

std::vector<int> usable_cores() {
  const CoreSet set;
  std::vector<int> cores;
  if (::sched_getaffinity(0, CoreSet::bytes(), set.get()) == 0) {
    for (int core = 0; core < kMaxCores; ++core) {
      if (set.holds(core)) cores.push_back(core);
    }
  }
  const int known = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (int core = 0; cores.empty() && core < known; ++core) cores.push_back(core);
  return cores;
}

std::vector<int> cores_near(const std::string& pci_bus, const std::filesystem::path& sys) {
  const std::vector<int> usable = usable_cores();
  if (pci_bus.empty()) return usable;
  int node = -1;  // as the kernel writes where it does not know
  std::ifstream(sys / "bus/pci/devices" / pci_bus / "numa_node") >> node;
  if (node < 0) return usable;
  const std::vector<int> of_node = parse_cpu_list(
      read_first_line(sys / "devices/system/node" / fmt::format("node{}", node) / "cpulist"));
  std::vector<int> near;
  std::ranges::copy_if(usable, std::back_inserter(near),
                       [&](int core) { return std::ranges::find(of_node, core) != of_node.end(); });
  return near.empty() ? usable : near;
}

void bind_this_thread(std::span<const int> cores) {
  CoreSet set;
  for (const int core : cores) {
    if (core >= 0 && core < kMaxCores) set.add(core);
  }
  if (!cores.empty()) (void)::sched_setaffinity(0, CoreSet::bytes(), set.get());
}

}  // namespace dstrain
