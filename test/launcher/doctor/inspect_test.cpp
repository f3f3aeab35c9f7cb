#include "launcher/doctor/inspect.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "engine/base/error.h"
#include "launcher/doctor/engine_probe.h"
#include "test/launcher/units.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::launcher;
namespace fs = std::filesystem;

namespace {

using dstrain::launcher::test::kGiB;

/// A machine with two GPUs and nothing to complain about.
Inspection healthy() {
  Inspection at;
  at.host = "h1";
  at.build = "dstrain 0.1.0 (commit abc)\ncompilers: GNU 12";
  at.arch = "x86_64";
  at.cores = 32;
  at.memory_bytes = 256 * kGiB;
  at.available_bytes = 200 * kGiB;
  at.open_files = 65536;
  at.shm_bytes = 128 * kGiB;
  at.disks = {{"working directory", "/data/work", true, 500 * kGiB, 1000 * kGiB}};
  at.gpu_nodes = 2;
  at.gpus_visible = 2;
  at.driver = "580.65.06";
  at.driver_cuda = 13000;
  for (int i = 0; i < 2; ++i) {
    GpuFacts gpu;
    gpu.index = i;
    gpu.name = "NVIDIA H200";
    gpu.memory_bytes = 140 * kGiB;
    gpu.used_bytes = kGiB / 2;
    gpu.nvlinks = 18;
    gpu.pcie_lanes = gpu.pcie_lanes_max = 16;
    gpu.uncorrected_errors = 0;
    at.gpus.push_back(gpu);
  }
  at.engine.loads = true;
  at.engine.path = "/opt/dstrain/lib/libdstrain_engine.so";
  at.engine.libraries = {{"LibTorch", "2.11.0", "/t/libtorch_cpu.so"},
                         {"CUDA runtime", "13.0", "/t/libcudart.so.13"}};
  return at;
}

bool says(const Inspection& at, Level level, const std::string& text) {
  const std::vector<Finding> findings = examine(at);
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.level == level && finding.text == text && !finding.advice.empty();
  });
}

}  // namespace

TEST_CASE("a look at this machine finds what the system says", "[launcher][inspect]") {
  dstrain::test::TempDir folder;
  const Inspection at = inspect(
      {.build = "dstrain test", .working_directory = folder.path(), .peer_address = "127.0.0.1"});
  char name[256] = {};
  REQUIRE(::gethostname(name, sizeof name - 1) == 0);
  CHECK(at.host == name);
  CHECK(at.build == "dstrain test");
  CHECK(at.kernel.starts_with("Linux "));
  CHECK(at.cores >= 1);
  CHECK(at.cores <= at.cores_installed);
  CHECK(at.memory_bytes > at.available_bytes);
  CHECK(at.available_bytes > 0);
  REQUIRE_FALSE(at.disks.empty());
  CHECK(at.disks.front().exists);
  CHECK(at.disks.front().free_bytes > 0);
  CHECK(at.clock_ns > 1'700'000'000'000'000'000);
  REQUIRE(at.route);
  CHECK(at.route->kind == NetworkInterface::Kind::loopback);
  CHECK(at.engine.path.empty());
}

TEST_CASE("every fact survives JSON", "[launcher][inspect]") {
  Inspection at = healthy();
  at.visible_devices = "1,0";
  at.gpus[1].throttled = {"heat", "power cap"};
  at.gpus[1].processes = {{4711, "python3", 60 * kGiB}, {4712, "", -1}};
  at.gpus[0].remap_failed = true;
  at.gpu_events = {"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."};
  at.interfaces = {{"eth0", "10.0.0.1", NetworkInterface::Kind::ethernet, 200000}};
  at.route = NetworkInterface{"ib0", "fd00::1", NetworkInterface::Kind::infiniband, 0};
  at.rdma = {{"mlx5_0:1", "ACTIVE", "400 Gb/sec (4X NDR)"}};
  at.peermem = true;
  at.ptrace_scope = 1;
  at.engine.error = "no";
  const std::string json = to_json(at);
  const Inspection back = inspection_from_json(json);
  CHECK(to_json(back) == json);
  CHECK(back.visible_devices == "1,0");
  CHECK(back.gpus.at(1).processes.at(1).memory_bytes == -1);
  CHECK(back.route->kind == NetworkInterface::Kind::infiniband);
  CHECK(back.disks.at(0).total_bytes == 1000 * kGiB);
  CHECK(back.engine.libraries.at(1).version == "13.0");
  CHECK_FALSE(inspection_from_json(to_json(healthy())).visible_devices);
}

TEST_CASE("text that is not UTF-8 does not break the answer", "[launcher][inspect]") {
  Inspection at = healthy();
  at.gpus[0].processes = {{1, "\xff\xfe", 0}};
  CHECK_NOTHROW(inspection_from_json(to_json(at)));
}

TEST_CASE("an answer of another kind is refused, fields of another version are not",
          "[launcher][inspect]") {
  for (const char* json : {"", "[]", "3", "{\"gpus\": 3}", "{\"gpus\": [3]}", "{\"host\": 3}",
                           "{\"cores\": \"x\"}", "{\"route\": []}", "{\"host\": \"h1\""}) {
    CAPTURE(json);
    CHECK_THROWS_AS(inspection_from_json(json), dstrain::Error);
  }
  CHECK(inspection_from_json("{\"host\": \"h1\", \"new\": [1]}").host == "h1");
}

TEST_CASE("a healthy machine has no findings", "[launcher][inspect]") {
  CHECK(examine(healthy()).empty());
  CHECK(worst(examine(healthy())) == Level::ok);
}

TEST_CASE("each fault has its level, its words and advice", "[launcher][inspect]") {
  Inspection at = healthy();
  SECTION("missing library") {
    at.engine.loads = false;
    at.engine.error = "libtorch_cuda.so: cannot open shared object file: No such file or directory";
    at.engine.missing = "libtorch_cuda.so";
    CHECK(says(at, Level::error, "library libtorch_cuda.so is missing"));
    at.engine.missing = "libdstrain_engine.so";
    CHECK(says(at, Level::error, "the engine is not there: /opt/dstrain/lib/libdstrain_engine.so"));
  }
  SECTION("missing working directory") {
    at.disks[0].exists = false;
    CHECK(says(at, Level::error, "working directory /data/work is not there"));
  }
  SECTION("full disk") {
    at.disks[0].free_bytes = 5 << 20;
    CHECK(says(at, Level::error, "5.00 MiB free in the working directory /data/work"));
    at.disks[0].free_bytes = 5 * kGiB;
    CHECK(says(at, Level::warning, "5.00 GiB free in the working directory /data/work"));
  }
  SECTION("hidden GPUs") {
    at.visible_devices = "";
    at.gpus_visible = 0;
    CHECK(
        says(at, Level::warning, "CUDA_VISIBLE_DEVICES is set but empty and shows none of 2 GPUs"));
  }
  SECTION("dead driver") {
    at.driver = "";
    at.gpus.clear();
    CHECK(says(at, Level::error, "2 GPU device nodes and no driver that answers"));
  }
  SECTION("a GPU that does not answer") {
    at.gpus.pop_back();
    CHECK(says(at, Level::warning, "the driver answers for 1 of 2 GPUs"));
  }
  SECTION("old driver") {
    at.driver_cuda = 12040;
    CHECK(says(at, Level::error, "driver 580.65.06 runs CUDA up to 12.4, the engine needs 13.0"));
    for (const Finding& finding : examine(at))
      CHECK(finding.advice.find("older CUDA") == std::string::npos);
  }
  SECTION("leftover memory") {
    at.gpus[1].used_bytes = 61 * kGiB;
    at.gpus[1].processes = {{4711, "python3", 60 * kGiB}, {9, "", 0}};
    CHECK(says(at, Level::warning,
               "GPU 1: 61.00 GiB of 140.00 GiB are held by 4711 (python3), 9 (not visible here)"));
    at.gpus[1].processes.clear();
    CHECK(
        says(at, Level::warning, "GPU 1: 61.00 GiB of 140.00 GiB are held by nobody visible here"));
  }
  SECTION("memory errors") {
    at.gpus[0].uncorrected_errors = 3;
    CHECK(says(at, Level::warning,
               "GPU 0: 3 uncorrectable memory errors since the driver was loaded"));
    at.gpus[0].remap_failed = true;
    CHECK(worst(examine(at)) == Level::error);
  }
  SECTION("heat is a warning, a power cap a note") {
    at.gpus[0].throttled = {"power cap"};
    CHECK(worst(examine(at)) == Level::note);
    at.gpus[0].throttled = {"heat"};
    at.gpus[0].temperature_c = 91;
    CHECK(says(at, Level::warning, "GPU 0 is slowed: heat (91 C)"));
  }
  SECTION("broken links") {
    at.gpus[0].nvlinks = 12;
    CHECK(says(at, Level::warning, "GPU 0 has 12 active NVLinks, others have 18"));
    at.gpus[1].pcie_lanes = 4;
    CHECK(says(at, Level::warning, "GPU 1 uses 4 of 16 PCIe lanes"));
  }
  SECTION("faults in the kernel's log") {
    at.gpu_events = {"NVRM: Xid (PCI:0000:3b:00): 31, pid=1"};
    CHECK(worst(examine(at)) == Level::warning);
    at.gpu_events.emplace_back("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.");
    CHECK(worst(examine(at)) == Level::error);
  }
  SECTION("limits") {
    at.locked_bytes = 65536;
    CHECK(examine(at).empty());  // only RDMA locks memory
    at.rdma = {{"mlx5_0:1", "DOWN", ""}};
    at.peermem = true;
    CHECK(says(at, Level::warning, "locked memory is limited to 64.00 KiB, RDMA wants no limit"));
    CHECK(says(at, Level::note, "InfiniBand port mlx5_0:1 is DOWN"));
    at.open_files = 256;
    CHECK(says(at, Level::warning, "a process may open 256 files"));
    at.shm_bytes = 64 << 20;
    CHECK(says(at, Level::warning, "/dev/shm holds 64.00 MiB"));
    at.ptrace_scope = 2;
    CHECK(says(at, Level::note, "kernel.yama.ptrace_scope is 2: no stacks of hung ranks"));
  }
  SECTION("memory") {
    at.available_bytes = kGiB;
    CHECK(says(at, Level::warning, "1.00 GiB of 256.00 GiB memory are available"));
    at.memory_limit_bytes = 64 * kGiB;
    CHECK(says(at, Level::note, "this control group may use 64.00 GiB of 256.00 GiB memory"));
  }
  SECTION("the worst comes first") {
    at.ptrace_scope = 3;
    at.disks[0].exists = false;
    at.open_files = 10;
    const std::vector<Finding> findings = examine(at);
    REQUIRE(findings.size() == 3);
    CHECK(findings[0].level == Level::error);
    CHECK(findings[2].level == Level::note);
  }
}

TEST_CASE("limits of control groups above ours count, too", "[launcher][inspect]") {
  dstrain::test::TempDir folder;
  const SystemRoots roots{folder / "sys", folder / "proc", folder / "dev"};
  const auto write = [](const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  };
  const auto limit = [&] {
    return inspect({.build = "", .working_directory = "/", .roots = roots}).memory_limit_bytes;
  };
  CHECK(limit() == -1);
  write(roots.proc / "self/cgroup", "0::/job/step");
  write(roots.sys / "fs/cgroup/job/step/memory.max", "max");
  CHECK(limit() == -1);
  write(roots.sys / "fs/cgroup/job/memory.max", "1073741824");
  CHECK(limit() == kGiB);
  write(roots.sys / "fs/cgroup/job/step/memory.max", "536870912");
  CHECK(limit() == kGiB / 2);
  write(roots.proc / "self/cgroup", "3:memory:/job");
  write(roots.sys / "fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712");
  CHECK(limit() == -1);
  write(roots.sys / "fs/cgroup/memory/memory.limit_in_bytes", "2147483648");
  CHECK(limit() == 2 * kGiB);
}

TEST_CASE("the loader's words about an engine that does not load", "[launcher][inspect]") {
  dstrain::test::TempDir folder;
  const fs::path file = folder / "libdstrain_engine.so";
  const EngineFacts absent = probe_engine(file, "", std::chrono::seconds(20));
  CHECK_FALSE(absent.loads);
  CHECK(absent.missing == "libdstrain_engine.so");
  std::ofstream(file) << "text";
  const EngineFacts broken = probe_engine(file, "", std::chrono::seconds(20));
  CHECK_FALSE(broken.loads);
  CHECK(broken.missing.empty());
  CHECK(broken.error.find("file too short") != std::string::npos);
  // A library of the system stands for one that loads.
  const EngineFacts good = probe_engine("libm.so.6", "", std::chrono::seconds(20));
  CHECK(good.loads);
  CHECK(good.error.empty());
  const EngineFacts other = probe_engine("libm.so.6", "dstrain 9\nof a", std::chrono::seconds(20));
  CHECK_FALSE(other.loads);
  CHECK(other.error ==
        "it is of another build: one that does not say which; this program is dstrain 9");
}
