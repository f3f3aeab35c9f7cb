#include "engine/base/host_memory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using dstrain::test::spit;
using dstrain::test::TempDir;

namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// /proc and /sys of a machine with 64 GiB available.
struct Machine {
  TempDir dir;
  fs::path proc = dir / "proc", sys = dir / "sys";

  explicit Machine(const std::string& groups) {
    fs::create_directories(proc / "self");
    spit(proc / "meminfo", "MemTotal:  134217728 kB\nMemAvailable:   67108864 kB\n");
    spit(proc / "self/cgroup", groups);
  }
  void group(const std::string& folder, const std::string& limit_file, const std::string& limit,
             const std::string& used_file, std::int64_t used, const std::string& stat) const {
    fs::create_directories(sys / folder);
    spit(sys / folder / limit_file, limit + "\n");
    spit(sys / folder / used_file, std::to_string(used) + "\n");
    spit(sys / folder / "memory.stat", stat);
  }
  void v2(const std::string& folder, const std::string& limit, std::int64_t used,
          const std::string& stat = "anon 1\n") const {
    group("fs/cgroup/" + folder, "memory.max", limit, "memory.current", used, stat);
  }
  void v1(const std::string& folder, const std::string& limit, std::int64_t used,
          const std::string& stat = "rss 1\n") const {
    group("fs/cgroup/memory/" + folder, "memory.limit_in_bytes", limit, "memory.usage_in_bytes",
          used, stat);
  }
  [[nodiscard]] UsableMemory usable() const { return usable_host_memory(proc, sys); }
};

std::string gib(std::int64_t count) { return std::to_string(count * kGiB); }

}  // namespace

TEST_CASE("without control groups the machine's available memory is usable", "[base]") {
  const Machine machine("");
  REQUIRE(machine.usable().bytes == 64 * kGiB);
  REQUIRE(machine.usable().bound == "available on this machine");
}

TEST_CASE("a system that says nothing bounds nothing", "[base]") {
  const TempDir empty;
  REQUIRE(usable_host_memory(empty.path(), empty.path()).bytes ==
          std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("file cache of a control group counts as free, v2", "[base]") {
  const Machine machine("0::/job/task\n");
  machine.v2(
      "job/task", gib(16), 10 * kGiB,
      "anon 1\nfile " + gib(9) + "\ninactive_file " + gib(5) + "\nactive_file " + gib(2) + "\n");
  REQUIRE(machine.usable().bytes == 13 * kGiB);
  REQUIRE(machine.usable().bound == "left by the control group " +
                                        (machine.sys / "fs/cgroup/job/task").string() +
                                        ", which may hold 16.00 GiB");
}

TEST_CASE("the tightest control group above this process counts", "[base]") {
  const Machine machine("0::/slurm/job/step\n");
  machine.v2("slurm/job/step", "max", 2 * kGiB);
  machine.v2("slurm/job", gib(40), 36 * kGiB, "inactive_file " + gib(1) + "\n");
  machine.v2("slurm", gib(60), 50 * kGiB);
  REQUIRE(machine.usable().bytes == 5 * kGiB);
  machine.v2("slurm/job/step", gib(3), 2 * kGiB);
  REQUIRE(machine.usable().bytes == 1 * kGiB);
  machine.v2("slurm", gib(10), 50 * kGiB);  // lowered below what is used
  REQUIRE(machine.usable().bytes == 0);
}

TEST_CASE("control groups of v1 count with what their children hold", "[base]") {
  const Machine machine("7:pids:/other\n4:cpuset,memory:/job\n0::/\n");
  machine.v1(
      "job", gib(8), 6 * kGiB,
      "inactive_file 5\ntotal_inactive_file " + gib(1) + "\ntotal_active_file " + gib(2) + "\n");
  machine.v1("", "9223372036854771712", 100 * kGiB);
  REQUIRE(machine.usable().bytes == 5 * kGiB);
}

TEST_CASE("a container that does not show its group's path has it at the mount", "[base]") {
  for (const char* path : {"/docker/0123", "/../../job", "/"}) {
    const Machine machine("0::" + std::string(path) + "\n");
    machine.v2("", gib(4), kGiB);
    REQUIRE(machine.usable().bytes == 3 * kGiB);
  }
}

TEST_CASE("broken files of control groups bound nothing", "[base]") {
  const Machine machine("0\nx:y\n0::/job\n4:memory:/job\n");
  machine.v2("job", "", 0);
  machine.v1("job", "many", 0, "total_active_file\n");
  REQUIRE(machine.usable().bytes == 64 * kGiB);
}

TEST_CASE("a limit of the address space bounds what is usable", "[base][not_emulated]") {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = std::size_t{200} << 30, .rlim_max = RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
    const TempDir dir;
    const UsableMemory usable = usable_host_memory(dir.path(), dir.path());
    const bool right = usable.bytes > 100 * kGiB && usable.bytes <= 200 * kGiB &&
                       usable.bound.find("RLIMIT_AS") != std::string::npos;
    std::error_code ignored;
    fs::remove_all(dir.path(), ignored);
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WEXITSTATUS(status) == 0);
}
