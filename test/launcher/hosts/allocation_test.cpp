#include "launcher/hosts/allocation.h"

#include <fmt/format.h>

#include <fstream>
#include <map>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::launcher;

TEST_CASE("GPUs are the numbered device nodes", "[launcher][machine]") {
  dstrain::test::TempDir dev;
  for (const char* name :
       {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "null"}) {
    std::ofstream file(dev / name);
  }
  CHECK(count_gpu_nodes(dev.path()) == 3);
  CHECK(count_gpu_nodes(dev / "absent") == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES ends at the first entry that names no GPU", "[launcher][machine]") {
  CHECK(count_visible_gpus(4, std::nullopt) == 4);
  CHECK(count_visible_gpus(4, "") == 0);
  CHECK(count_visible_gpus(4, "-1") == 0);
  CHECK(count_visible_gpus(4, "1,3") == 2);
  CHECK(count_visible_gpus(4, " 2 , 0") == 2);
  CHECK(count_visible_gpus(4, "0,4,1") == 1);
  CHECK(count_visible_gpus(4, "0,-1,1") == 1);
  CHECK(count_visible_gpus(4, "GPU-8932f937,MIG-1a2b") == 2);
  CHECK(count_visible_gpus(0, "0,1") == 0);
}

TEST_CASE("ranks default to the GPUs, or one without", "[launcher][allocation]") {
  CHECK(allocate_local({.host = "h", .cores = 8, .gpus = 4, .gpus_installed = 4}, 0)
            .hosts.front()
            .slots == 4);
  CHECK(allocate_local({.host = "h", .cores = 8}, 0).hosts.front().slots == 1);
  CHECK(allocate_local({.host = "h", .cores = 8}, 6).hosts.front().slots == 6);
}

TEST_CASE("more ranks than GPUs is an error with both numbers", "[launcher][allocation]") {
  const Machine machine{.host = "h", .cores = 8, .gpus = 2, .gpus_installed = 2};
  REQUIRE_THROWS_WITH(allocate_local(machine, 4), "--ranks 4: h has 2 visible GPUs");
  REQUIRE_THROWS_AS(allocate_local(machine, -1), Error);
}

TEST_CASE("an empty CUDA_VISIBLE_DEVICES asks for CPU ranks and is remarked on",
          "[launcher][allocation]") {
  const Machine machine{
      .host = "h", .cores = 8, .gpus = 0, .gpus_installed = 2, .gpus_hidden = true};
  const Allocation allocation = allocate_local(machine, 4);
  CHECK(allocation.hosts.front().slots == 4);
  REQUIRE(allocation.remarks.size() == 1);
  CHECK(allocation.remarks.front() ==
        "CUDA_VISIBLE_DEVICES shows none of the 2 GPUs of h: the ranks run on CPU");
}

namespace {

using Table = std::map<std::string, std::string>;

const Machine kCpuMachine{.host = "me", .cores = 8};
const Machine kGpuMachine{.host = "me", .cores = 64, .gpus = 4, .gpus_installed = 4};

Allocation allocated(const HostRequest& request, const Table& table = {},
                     const Machine& machine = kCpuMachine) {
  return allocate(request, machine, [&](const char* name) {
    const auto found = table.find(name);
    return found == table.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const HostRequest& request, const Table& table = {},
                     const Machine& machine = kCpuMachine) {
  try {
    static_cast<void>(allocated(request, table, machine));
    return "no error";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
}

/// "h1 4 ranks 4 gpus 8 cores".
std::vector<std::string> lines_of(const Allocation& allocation) {
  std::vector<std::string> lines;
  for (const Host& host : allocation.hosts) {
    lines.push_back(
        fmt::format("{} {} ranks {} gpus {} cores", host.name, host.slots, host.gpus, host.cores));
  }
  return lines;
}

using Lines = std::vector<std::string>;

/// `table` within a job of two nodes.
Table two_nodes(Table table) {
  table.insert({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "h[1-2]"}});
  return table;
}

}  // namespace

TEST_CASE("without hosts and Slurm the job runs here", "[launcher][allocation]") {
  const Allocation allocation = allocated({.ranks = 3});
  REQUIRE(allocation.hosts.size() == 1);
  CHECK(allocation.hosts.front().reach == Reach::local);
  CHECK(allocation.hosts.front().slots == 3);
  CHECK(error_of({.ranks = 5}, {}, kGpuMachine) == "--ranks 5: me has 4 visible GPUs");
  // One task of another's srun: the nodes are not ours.
  CHECK(allocated({}, two_nodes({{"SLURM_STEP_ID", "0"}})).hosts.front().reach == Reach::local);
}

TEST_CASE("hosts keep all their slots, whatever --ranks says", "[launcher][allocation]") {
  const Allocation allocation = allocated({.ranks = 3, .hosts = "a:4,b:4"});
  CHECK(lines_of(allocation) == Lines{"a 4 ranks 0 gpus 1 cores", "b 4 ranks 0 gpus 1 cores"});
  CHECK(allocation.hosts[1].reach == Reach::ssh);
  CHECK(allocation.hosts[1].address.empty());
  CHECK(error_of({.ranks = 9, .hosts = "a:4,b:4"}) ==
        "--ranks 9: the hosts take 8 ranks (a 4, b 4)");
  CHECK(error_of({.ranks = 20, .hosts = "a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1"}) ==
        "--ranks 20: the hosts take 10 ranks (a 1, b 1, c 1, d 1, e 1, f 1, g 1, h 1, 2 more "
        "hosts)");
  CHECK(error_of({.ranks = -1, .hosts = "a:1"}) == "--ranks -1: the hosts take 1 rank (a 1)");
  // Hosts that are named go before those of Slurm.
  CHECK(allocated({.hosts = "a:4"}, two_nodes({})).hosts.front().reach == Reach::ssh);
}

TEST_CASE("more hosts by ssh than one machine starts are refused, with the way out",
          "[launcher][allocation]") {
  std::string many = "localhost:1";  // this machine needs no ssh
  for (int i = 0; i < kMaxSshHosts; ++i) many += fmt::format(",n{}:1", i);
  CHECK(allocated({.hosts = many}).hosts.size() == kMaxSshHosts + 1);
  CHECK(error_of({.hosts = many + ",x:1"}) == "65 hosts by ssh: dstrain starts at most 64");
  CHECK(allocated({.hosts = many + ",x:1", .exclude = "n0"}).hosts.size() == kMaxSshHosts + 1);
}

TEST_CASE("this machine among the hosts is described and checked", "[launcher][allocation]") {
  const Allocation mixed = allocated({.hosts = "localhost:2,b:4"}, {}, kGpuMachine);
  CHECK(lines_of(mixed) == Lines{"localhost 2 ranks 4 gpus 64 cores", "b 4 ranks 0 gpus 1 cores"});
  CHECK(mixed.hosts[0].reach == Reach::local);
  CHECK(mixed.hosts[0].address.empty());
  CHECK(allocated({.hosts = "me:2"}).hosts.front().address == "127.0.0.1");
  CHECK(error_of({.hosts = "me:8"}, {}, kGpuMachine) == "8 ranks on me: it has 4 visible GPUs");
  CHECK(allocated({.hosts = "me:8", .cpu_ranks = true}, {}, kGpuMachine).hosts[0].slots == 8);
}

TEST_CASE("include and exclude choose GPUs of this machine too", "[launcher][allocation]") {
  const Allocation some = allocated({.include = "me:3,1"}, {}, kGpuMachine);
  CHECK(lines_of(some) == Lines{"me 2 ranks 2 gpus 64 cores"});
  CHECK(some.hosts.front().devices == std::vector<int>{3, 1});
  CHECK(allocated({.exclude = "me:0"}, {}, kGpuMachine).hosts.front().slots == 3);
  CHECK(error_of({.ranks = 3, .include = "me:3,1"}, {}, kGpuMachine) ==
        "--ranks 3: the hosts take 2 ranks (me 2)");
}

TEST_CASE("a hostfile is read whole or refused", "[launcher][allocation]") {
  const dstrain::test::TempDir folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return folder / name;
  };
  const auto good = write("good", "a slots=2\nme slots=1 gpus=3\n");
  CHECK(lines_of(allocated({.hostfile = good}, {}, kGpuMachine)) ==
        Lines{"a 2 ranks 0 gpus 1 cores", "me 1 ranks 1 gpus 64 cores"});
  const auto names = write("names", "a\na\nb\n");  // as $PBS_NODEFILE
  const Allocation listed = allocated({.hostfile = names}, {});
  CHECK(lines_of(listed) == Lines{"a 2 ranks 0 gpus 1 cores", "b 1 ranks 0 gpus 1 cores"});
  CHECK(listed.remarks ==
        Lines{names.string() + " says no slots=: each line is one rank of that host"});
  CHECK(error_of({.hosts = "a:1", .hostfile = good}) == "--hosts and --hostfile both name hosts");
  CHECK(error_of({.hostfile = good}) == "GPU 3 of me: it has 0 visible GPUs");
  const auto bad = write("bad", "a slots=x\n");
  CHECK(error_of({.hostfile = bad}) ==
        bad.string() + ":1:9: 'x' is no number of ranks; a host takes 1 to 1024");
  const auto large = write("large", std::string(10 << 20, 'a'));
  CHECK(error_of({.hostfile = large}) ==
        fmt::format("--hostfile: {} has 10485760 bytes, more than the limit of 1048576",
                    large.string()));
  CHECK(error_of({.hostfile = folder / "absent"}) ==
        fmt::format("--hostfile: cannot read {}: No such file or directory",
                    (folder / "absent").string()));
  CHECK(error_of({.hostfile = folder.path()}) ==
        fmt::format("--hostfile: cannot read {}: it is a directory, not a file",
                    folder.path().string()));
}

// The variables are those that Slurm 22.05 sets for the options named.
TEST_CASE("a Slurm allocation is found and counted", "[launcher][allocation][slurm]") {
  const auto lines = [](Table table) { return lines_of(allocated({}, two_nodes(table))); };
  // --nodes=2
  CHECK(lines({{"SLURM_TASKS_PER_NODE", "4(x2)"}, {"SLURM_JOB_CPUS_PER_NODE", "4(x2)"}}) ==
        Lines{"h1 1 ranks 0 gpus 4 cores", "h2 1 ranks 0 gpus 4 cores"});
  // --nodes=2 --ntasks=3
  CHECK(lines({{"SLURM_NTASKS", "3"},
               {"SLURM_TASKS_PER_NODE", "2,1"},
               {"SLURM_JOB_CPUS_PER_NODE", "2,1"}}) ==
        Lines{"h1 2 ranks 0 gpus 2 cores", "h2 1 ranks 0 gpus 1 cores"});
  // --nodes=2 --ntasks-per-node=1 --gpus-per-node=4
  CHECK(lines({{"SLURM_NTASKS_PER_NODE", "1"},
               {"SLURM_NTASKS", "2"},
               {"SLURM_TASKS_PER_NODE", "1(x2)"},
               {"SLURM_GPUS_PER_NODE", "h100:4"},
               {"SLURM_GPUS_ON_NODE", "4"},
               {"CUDA_VISIBLE_DEVICES", "0,1,2,3"}}) ==
        Lines{"h1 4 ranks 4 gpus 1 cores", "h2 4 ranks 4 gpus 1 cores"});
  // --nodes=2 --gres=gpu:2, in a batch script
  CHECK(lines({{"SLURM_GPUS_ON_NODE", "2"}, {"SLURM_TASKS_PER_NODE", "1(x2)"}}) ==
        Lines{"h1 2 ranks 2 gpus 1 cores", "h2 2 ranks 2 gpus 1 cores"});
  // --nodes=2 --gpus=3, in a batch script
  CHECK(lines({{"SLURM_GPUS", "3"}, {"SLURM_GPUS_ON_NODE", "2"}}) ==
        Lines{"h1 2 ranks 2 gpus 1 cores", "h2 1 ranks 1 gpus 1 cores"});
  // --nodes=2 --ntasks=3 --gpus-per-task=1
  CHECK(lines({{"SLURM_GPUS_PER_TASK", "1"},
               {"SLURM_NTASKS", "3"},
               {"SLURM_TASKS_PER_NODE", "2,1"},
               {"SLURM_GPUS_ON_NODE", "2"}}) ==
        Lines{"h1 2 ranks 2 gpus 1 cores", "h2 1 ranks 1 gpus 1 cores"});
}

TEST_CASE("one node of Slurm is reached by srun as well", "[launcher][allocation][slurm]") {
  const Allocation allocation = allocated(
      {}, {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "me"}, {"SLURM_GPUS", "a:1,b:2"}});
  REQUIRE(allocation.hosts.size() == 1);
  CHECK(allocation.hosts.front().reach == Reach::slurm);
  CHECK(allocation.hosts.front().slots == 3);
  CHECK(allocation.hosts.front().address.empty());
}

TEST_CASE("an emptied CUDA_VISIBLE_DEVICES in a job with GPUs is an error",
          "[launcher][allocation][slurm]") {
  const Table gpus = two_nodes({{"SLURM_GPUS_ON_NODE", "2"}, {"CUDA_VISIBLE_DEVICES", ""}});
  CHECK(error_of({}, gpus) ==
        "CUDA_VISIBLE_DEVICES is set but empty: no rank would see the GPUs that "
        "SLURM_GPUS_ON_NODE gives the job");
  CHECK(allocated({.cpu_ranks = true}, gpus).hosts.front().gpus == 0);
  CHECK(error_of({}, two_nodes({{"CUDA_VISIBLE_DEVICES", ""}})) == "no error");
}

TEST_CASE("Slurm's variables that contradict each other are named",
          "[launcher][allocation][slurm]") {
  const auto error = [](Table table) { return error_of({}, two_nodes(table)); };
  CHECK(error_of({}, {{"SLURM_JOB_ID", "7"}}) ==
        "SLURM_JOB_ID is set, but SLURM_JOB_NODELIST is not");
  CHECK(error_of({}, {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "h[1-"}}) ==
        "SLURM_JOB_NODELIST: node list 'h[1-':5: the last number is missing");
  CHECK(error({{"SLURM_JOB_CPUS_PER_NODE", "4(x3)"}}) ==
        "SLURM_JOB_CPUS_PER_NODE='4(x3)' speaks of 3 nodes, SLURM_JOB_NODELIST of 2");
  CHECK(error({{"SLURM_NTASKS", "2"}, {"SLURM_TASKS_PER_NODE", "one"}}) ==
        "SLURM_TASKS_PER_NODE: counts 'one':1: a count is missing");
  CHECK(error({{"SLURM_GPUS_PER_NODE", "all"}}) == "SLURM_GPUS_PER_NODE='all' is no count of GPUs");
  CHECK(error({{"SLURM_GPUS_PER_NODE", "4096"}}) ==
        "node h1 would get 4096 ranks; a host takes 1 to 1024");
  CHECK(error({{"SLURM_GPUS", "3"}}) ==
        "SLURM_GPUS=3: how Slurm has divided them between 2 nodes is not said");
  CHECK(error_of({.ranks = 5}, two_nodes({{"SLURM_GPUS_PER_NODE", "2"}})) ==
        "--ranks 5: the hosts take 4 ranks (h1 2, h2 2)");
}

TEST_CASE("what Slurm leaves unsaid is remarked on", "[launcher][allocation][slurm]") {
  const auto remarks = [](Table table) { return allocated({}, two_nodes(table)).remarks; };
  CHECK(remarks({{"SLURM_CPUS_ON_NODE", "4"}}).empty());
  CHECK(remarks({}) ==
        Lines{"Slurm's variables tell of no GPUs: the ranks run on CPU; salloc tells of those that "
              "were asked for with --gpus-per-node, not with --gres"});
  CHECK(remarks({{"SLURM_NTASKS_PER_NODE", "2"}, {"SLURM_GPUS_PER_NODE", "8"}}) ==
        Lines{"SLURM_NTASKS_PER_NODE=2: there is one rank for each of the 8 GPUs of a node "
              "nevertheless"});
}
