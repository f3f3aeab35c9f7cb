#include "launcher/job/oom.h"

#include <fstream>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

SystemRoots machine(const dstrain::test::TempDir& directory, const std::string& groups) {
  const SystemRoots roots{.sys = directory / "sys", .proc = directory / "proc", .dev = {}};
  write(roots.proc / "self/cgroup", groups);
  write(roots.proc / "meminfo", "MemTotal:        4096 kB\nMemFree:         1024 kB\n");
  write(roots.proc / "vmstat", "nr_free_pages 7\noom_kill 3\n");
  return roots;
}

}  // namespace

TEST_CASE("a version 1 group gives its kills and the smallest limit above it", "[launcher][oom]") {
  const dstrain::test::TempDir directory;
  const SystemRoots roots = machine(directory, "5:cpu:/a\n4:memory:/job/7\n0::/\n");
  const fs::path group = roots.sys / "fs/cgroup/memory/job/7";
  write(group / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 12\n");
  write(group / "memory.stat", "cache 5\nhierarchical_memory_limit 1048576\n");
  CHECK(count_oom_kills(roots) == 12);
  CHECK(memory_limit_bytes(roots) == kMiB);
}

TEST_CASE("a version 2 group gives its kills and the smallest limit above it", "[launcher][oom]") {
  const dstrain::test::TempDir directory;
  const SystemRoots roots = machine(directory, "0::/job/7\n");
  const fs::path group = roots.sys / "fs/cgroup/job/7";
  write(group / "memory.events", "low 0\nmax 8\noom 2\noom_kill 2\n");
  write(group / "memory.max", "max\n");
  write(group.parent_path() / "memory.max", "2097152\n");
  CHECK(count_oom_kills(roots) == 2);
  CHECK(memory_limit_bytes(roots) == 2 * kMiB);
}

TEST_CASE("a container sees its own group at the root of the mount", "[launcher][oom]") {
  const dstrain::test::TempDir directory;
  const SystemRoots roots = machine(directory, "0::/unseen/path\n");
  write(roots.sys / "fs/cgroup/memory.events", "oom_kill 1\n");
  write(roots.sys / "fs/cgroup/memory.max", "3145728\n");
  CHECK(count_oom_kills(roots) == 1);
  CHECK(memory_limit_bytes(roots) == 3 * kMiB);
}

TEST_CASE("without a group the whole machine's counter and memory count", "[launcher][oom]") {
  const dstrain::test::TempDir directory;
  const SystemRoots roots = machine(directory, "4:memory:/job/7\n");
  CHECK(count_oom_kills(roots) == 3);
  CHECK(memory_limit_bytes(roots) == 4 * kMiB);
  fs::remove_all(roots.proc);
  CHECK(count_oom_kills(roots) == -1);
  CHECK(memory_limit_bytes(roots) == 0);
}

}  // namespace dstrain::launcher
