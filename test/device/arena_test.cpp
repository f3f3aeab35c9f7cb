#include "engine/device/arena.h"

#include <ATen/core/Tensor.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/host_memory.h"
#include "engine/device/numa.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using test::spit;
using test::TempDir;

TEST_CASE("a host arena holds what was asked for, resident and zeroed", "[device]") {
  const auto kind = GENERATE(HostMemory::pageable, HostMemory::pinned);
  const Bytes bytes = (Bytes{96} << 20) + 12;
  const Bytes before = host_resident_bytes();
  {
    const HostArena arena(bytes, {.kind = kind});
    REQUIRE(arena.size() == bytes);
    REQUIRE_FALSE(arena.pinned());  // no GPU that it is for
    REQUIRE(host_resident_bytes() - before >= bytes);
    REQUIRE(host_resident_bytes() - before < bytes / 2 * 3);
    REQUIRE(std::all_of(arena.data(), arena.data() + bytes,
                        [](std::byte b) { return b == std::byte{}; }));
  }
  REQUIRE(host_resident_bytes() - before < Bytes{16} << 20);
}

TEST_CASE("tensors of an arena are its memory and keep it alive", "[device]") {
  at::Tensor x, y;
  {
    const HostArena arena(4096 + 40, {});
    x = arena.tensor(at::kFloat, 10, 4096);
    y = arena.tensor(at::kBFloat16, 2048);
    REQUIRE(x.mutable_data_ptr() == arena.data() + 4096);
    REQUIRE(x.sizes() == at::IntArrayRef({10}));
    REQUIRE(x.device() == c10::Device(c10::kCPU));
  }
  std::fill_n(x.mutable_data_ptr<float>(), 10, 3.0f);
  REQUIRE(x.const_data_ptr<float>()[9] == 3.0f);
  REQUIRE(y.scalar_type() == at::kBFloat16);
  REQUIRE(y.nbytes() == 4096);
}

TEST_CASE("an arena refuses ranges that it does not hold", "[device]") {
  const HostArena arena(100, {});
  REQUIRE(arena.tensor(at::kFloat, 25).numel() == 25);
  REQUIRE(arena.tensor(at::kFloat, 0, 100).numel() == 0);
  REQUIRE_THROWS_AS(arena.tensor(at::kFloat, 26), Error);
  REQUIRE_THROWS_AS(arena.tensor(at::kFloat, 1, 2), Error);
  REQUIRE_THROWS_AS(arena.tensor(at::kFloat, 1, -4), Error);
  REQUIRE_THROWS_AS(arena.tensor(at::kFloat, -1), Error);
  REQUIRE_THROWS_AS(arena.tensor(at::kByte, 1, 200), Error);
}

TEST_CASE("empty arenas are arenas", "[device]") {
  const HostArena none;
  REQUIRE(none.size() == 0);
  const HostArena empty(0, {.kind = HostMemory::pinned});
  REQUIRE(empty.size() == 0);
  REQUIRE(empty.tensor(at::kFloat, 0).numel() == 0);
}

TEST_CASE("an arena beyond the host's memory is refused before it takes any", "[device]") {
  const Bytes before = host_resident_bytes();
  try {
    const HostArena arena(Bytes{1} << 50,
                          {.kind = HostMemory::pageable, .what = "optimizer states"});
    FAIL("no error");
  } catch (const Error& error) {
    const std::string text = error.what();
    REQUIRE(
        text.starts_with("out of memory on the host: 1024.00 TiB (1125899906842624 bytes) of "
                         "pageable memory wanted for optimizer states; "));
    REQUIRE(error.hint().find("memory.offload.share") != std::string::npos);
  }
  REQUIRE(host_resident_bytes() - before < Bytes{16} << 20);
}

TEST_CASE("an arena beyond the address space is an error and not the process's end", "[device]") {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = rlim_t{1} << 28, .rlim_max = RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      const HostArena arena(Bytes{1} << 30, {});
    } catch (const Error& error) {
      const bool named = std::string(error.what()).find("RLIMIT_AS") != std::string::npos;
      ::_exit(named ? exit_code(error.kind()) : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == exit_code(ErrorKind::internal));
}

TEST_CASE("arenas are made by many threads at once", "[device]") {
  std::vector<std::jthread> threads;
  std::vector<HostArena> arenas(8);
  for (HostArena& arena : arenas)
    threads.emplace_back([&arena] { arena = HostArena(Bytes{5} << 20, {}); });
  threads.clear();
  for (const HostArena& arena : arenas) REQUIRE(arena.size() == Bytes{5} << 20);
}

TEST_CASE("cores near a GPU are those of its NUMA node that the process may use", "[device]") {
  const std::vector<int> usable = usable_cores();
  REQUIRE_FALSE(usable.empty());
  const TempDir dir;
  const auto machine = [&](const std::string& node, const std::string& cores) {
    fs::create_directories(dir / "bus/pci/devices/0000:17:00.0");
    fs::create_directories(dir / "devices/system/node/node1");
    spit(dir / "bus/pci/devices/0000:17:00.0/numa_node", node + "\n");
    spit(dir / "devices/system/node/node1/cpulist", cores + "\n");
    return cores_near("0000:17:00.0", dir.path());
  };
  const std::string last = std::to_string(usable.back());
  REQUIRE(machine("1", last) == std::vector<int>{usable.back()});
  REQUIRE(machine("1", last + "," + last + "-9000,12000-12001") == std::vector<int>{usable.back()});
  REQUIRE(machine("1", "0-8191") == usable);
  for (const char* none : {"", "x", "7000-7001", "-3", "5-"})
    REQUIRE_FALSE(machine("1", none).empty());
  REQUIRE(machine("-1", last) == usable);
  REQUIRE(machine("0", last) == usable);
  REQUIRE(cores_near("0000:99:00.0", dir.path()) == usable);
  REQUIRE(cores_near("", dir.path()) == usable);
}

TEST_CASE("a bound thread stays on its cores", "[device]") {
  std::vector<int> seen;
  const std::vector<int> one = {usable_cores().back()};
  std::jthread([&] {
    bind_this_thread({});
    bind_this_thread(std::vector<int>{-1, 1 << 20});
    bind_this_thread(one);
    seen = usable_cores();
  }).join();
  REQUIRE(seen == one);
}

}  // namespace
}  // namespace dstrain
