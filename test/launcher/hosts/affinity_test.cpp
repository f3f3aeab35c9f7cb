#include "launcher/hosts/affinity.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <set>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::launcher;
namespace fs = std::filesystem;

namespace {

using Sets = std::vector<std::vector<int>>;

std::vector<int> range(int first, int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

/// /sys, /proc and /dev of a machine that does not exist.
class Tree {
 public:
  void node(int index, const std::string& cpus) {
    write(roots.sys / fmt::format("devices/system/node/node{}/cpulist", index), cpus);
  }
  void core(const std::vector<int>& siblings) {
    for (const int cpu : siblings) {
      write(roots.sys / fmt::format("devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu),
            format_cpu_list(siblings));
    }
  }
  /// The minor is the index; the bus grows with `bus`.
  void gpu(int index, int bus, int numa_node, const std::string& local_cpus,
           const std::string& model = "NVIDIA H100") {
    const std::string id = fmt::format("0000:{:02x}:00.0", bus);
    write(roots.proc / "driver/nvidia/gpus" / id / "information",
          fmt::format("Model: \t\t {}\nGPU UUID: \t GPU-{:04d}-aaaa\nBus Location: \t {}\n"
                      "Device Minor: \t {}",
                      model, index, id, index));
    write(roots.sys / "bus/pci/devices" / id / "numa_node", std::to_string(numa_node));
    write(roots.sys / "bus/pci/devices" / id / "local_cpulist", local_cpus);
    write(roots.dev / fmt::format("nvidia{}", index), "");
  }

 private:
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  dstrain::test::TempDir folder_;

 public:
  SystemRoots roots{folder_ / "sys", folder_ / "proc", folder_ / "dev"};
};

/// Two nodes of 8 cores with two hyperthreads (0-7,16-23 and 8-15,24-31), four GPUs on each.
void fill_two_nodes(Tree& tree, int gpus_per_node = 4) {
  tree.node(0, "0-7,16-23");
  tree.node(1, "8-15,24-31");
  for (int core = 0; core < 16; ++core) tree.core({core, core + 16});
  for (int i = 0; i < 2 * gpus_per_node; ++i) {
    const int node = i / gpus_per_node;
    tree.gpu(i, 0x10 + i, node, node == 0 ? "0-7,16-23" : "8-15,24-31");
  }
}

}  // namespace

TEST_CASE("CPU lists survive both ways, and nonsense is left out", "[launcher][affinity]") {
  CHECK(parse_cpu_list("0-3,8,10-11\n") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_cpu_list("").empty());
  CHECK(parse_cpu_list("a,3-1,-2,5,99999999999,1-99999999") == std::vector<int>{5});
  CHECK(format_cpu_list({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
}

TEST_CASE("each rank gets whole cores of its GPU's node, its neighbours none of them",
          "[launcher][affinity]") {
  Tree tree;
  fill_two_nodes(tree);
  const Affinity affinity = plan_affinity({.num_ranks = 8, .allowed = range(0, 32)}, tree.roots);
  REQUIRE(affinity.cpus.size() == 8);
  CHECK(affinity.cpus[0] == std::vector<int>{0, 1, 16, 17});
  CHECK(affinity.cpus[3] == std::vector<int>{6, 7, 22, 23});
  CHECK(affinity.cpus[4] == std::vector<int>{8, 9, 24, 25});
  std::set<int> seen;
  for (const auto& cpus : affinity.cpus) seen.insert(cpus.begin(), cpus.end());
  CHECK(seen.size() == 32);  // disjoint, and nothing is wasted
  CHECK(describe(affinity).starts_with(
      "local rank 0: cpus 0-1,16-17 (NUMA node 0); local rank 1: cpus 2-3,18-19 (NUMA node 0); "));
}

TEST_CASE("two nodes with eight GPUs each", "[launcher][affinity]") {
  Tree tree;
  fill_two_nodes(tree, 8);
  const Affinity affinity = plan_affinity({.num_ranks = 16, .allowed = range(0, 32)}, tree.roots);
  REQUIRE(affinity.cpus.size() == 16);
  for (int rank = 0; rank < 16; ++rank) {
    CHECK(affinity.cpus[static_cast<std::size_t>(rank)] == std::vector<int>{rank, rank + 16});
  }
}

TEST_CASE("the visible order decides which GPU a rank is near", "[launcher][affinity]") {
  Tree tree;
  fill_two_nodes(tree);
  SECTION("by index") {
    const auto affinity = plan_affinity(
        {.num_ranks = 2, .visible_devices = "6, 1", .allowed = range(0, 32)}, tree.roots);
    CHECK(affinity.numa_nodes == std::vector<int>{1, 0});
    CHECK(affinity.cpus[0] == parse_cpu_list("8-15,24-31"));
  }
  SECTION("by the beginning of a UUID") {
    const auto affinity = plan_affinity(
        {.num_ranks = 1, .visible_devices = "GPU-0005", .allowed = range(0, 32)}, tree.roots);
    CHECK(affinity.numa_nodes == std::vector<int>{1});
  }
  SECTION("the list ends at the first entry that names none") {
    const auto affinity = plan_affinity(
        {.num_ranks = 2, .visible_devices = "1,99,2", .allowed = range(0, 32)}, tree.roots);
    CHECK(affinity.cpus.empty());
    CHECK(describe(affinity) == "ranks are not bound to CPUs: more ranks than GPUs");
  }
  SECTION("GPUs whose device node this container lacks do not count") {
    fs::remove(tree.roots.dev / "nvidia0");
    const auto affinity = plan_affinity(
        {.num_ranks = 1, .visible_devices = "3", .allowed = range(0, 32)}, tree.roots);
    CHECK(affinity.numa_nodes == std::vector<int>{1});
  }
}

TEST_CASE("offline and forbidden CPUs are left out", "[launcher][affinity]") {
  Tree tree;
  fill_two_nodes(tree);
  tree.node(0, "0-7,16-20");  // the kernel lists only CPUs that are online
  const Affinity affinity =
      plan_affinity({.num_ranks = 8, .allowed = parse_cpu_list("1-7,8,12,16-31")}, tree.roots);
  REQUIRE(affinity.cpus.size() == 8);
  // 8 cores: 0 has its second thread alone, 5-7 have their first alone.
  CHECK(affinity.cpus[0] == std::vector<int>{1, 16, 17});
  CHECK(affinity.cpus[3] == std::vector<int>{6, 7});
  CHECK(affinity.cpus[4] == std::vector<int>{8, 24, 25});
}

TEST_CASE("a rank whose node is not allowed goes where the most cores are free",
          "[launcher][affinity]") {
  Tree tree;
  tree.node(0, "0-3");
  tree.node(1, "4-11");
  tree.node(2, "12-15");
  tree.gpu(0, 1, 0, "0-3");
  tree.gpu(1, 2, 1, "4-11");
  tree.gpu(2, 3, 2, "12-15");
  const Affinity affinity = plan_affinity({.num_ranks = 3, .allowed = range(0, 12)}, tree.roots);
  CHECK(affinity.cpus == Sets{range(0, 4), range(4, 4), range(8, 4)});
  CHECK(affinity.reason == "the CPUs near the GPU of local rank 2 are not allowed to this job");
}

TEST_CASE("more ranks than cores share by hyperthread, more than CPUs not at all",
          "[launcher][affinity]") {
  Tree tree;
  tree.node(0, "0-1,4-5");
  tree.node(1, "2-3,6-7");
  for (int core = 0; core < 4; ++core) tree.core({core, core + 4});
  for (int i = 0; i < 4; ++i) tree.gpu(i, i, 0, "0-1,4-5");
  const auto affinity = plan_affinity({.num_ranks = 4, .allowed = range(0, 8)}, tree.roots);
  CHECK(affinity.cpus == Sets{{0}, {4}, {1}, {5}});
  const auto crowded = plan_affinity({.num_ranks = 4, .allowed = {0, 1, 2}}, tree.roots);
  CHECK(describe(crowded) == "ranks are not bound to CPUs: 2 CPUs of NUMA node 0 for 4 ranks");
}

TEST_CASE("firmware without numa_node still gives the CPUs", "[launcher][affinity]") {
  Tree tree;
  fill_two_nodes(tree);
  tree.gpu(5, 0x15, -1, "8-15");
  tree.gpu(0, 0x10, -1, "0-31");
  CHECK(plan_affinity({.num_ranks = 1, .visible_devices = "5", .allowed = range(0, 32)}, tree.roots)
            .numa_nodes == std::vector<int>{1});
  CHECK(plan_affinity({.num_ranks = 1, .visible_devices = "0", .allowed = range(0, 32)}, tree.roots)
            .reason == "the NUMA node of GPU 0000:10:00.0 is not known");
}

TEST_CASE("there is nothing to bind to without GPUs, on one node, or in an unknown order",
          "[launcher][affinity]") {
  Tree tree;
  CHECK(plan_affinity({.num_ranks = 2, .allowed = range(0, 8)}, tree.roots).reason == "no GPU");
  tree.node(0, "0-7");
  tree.gpu(0, 1, 0, "0-7");
  CHECK(plan_affinity({.num_ranks = 1, .allowed = range(0, 8)}, tree.roots).reason ==
        "all usable CPUs are on one NUMA node");
  CHECK(plan_affinity({.num_ranks = 1, .visible_devices = "", .allowed = range(0, 8)}, tree.roots)
            .reason == "no visible GPU");
  CHECK(plan_affinity({.num_ranks = 1, .visible_devices = "MIG-1", .allowed = range(0, 8)},
                      tree.roots)
            .reason == "CUDA_VISIBLE_DEVICES names MIG slices");
  tree.node(1, "8-15");
  tree.gpu(1, 2, 1, "8-15", "NVIDIA A100");
  AffinityRequest request{.num_ranks = 2, .allowed = range(0, 16)};
  CHECK(plan_affinity(request, tree.roots).reason.starts_with("GPUs of several kinds"));
  request.pci_order = true;
  CHECK(plan_affinity(request, tree.roots).cpus == Sets{range(0, 8), range(8, 8)});
}

TEST_CASE("binding restricts the process that asks", "[launcher][affinity]") {
  const auto none = [](const char*) -> const char* { return nullptr; };
  const std::vector<int> allowed = affinity_request(1, none).allowed;
  REQUIRE_FALSE(allowed.empty());
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::vector<int> last = {allowed.back()};
    const bool bound = bind_to_cpus(last) && affinity_request(1, none).allowed == last;
    const bool unchanged = bind_to_cpus({}) && affinity_request(1, none).allowed == last;
    ::_exit(bound && unchanged ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK(status == 0);
}
