#include "engine/samples/sampler.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/base/host_memory.h"
#include "engine/samples/gpu_sample.h"
#include "engine/samples/process_sample.h"
#include "engine/samples/share.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::test;

namespace {

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::istringstream text(slurp(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

template <class Condition>
bool within(double seconds, const Condition& condition) {
  for (int i = 0; i < static_cast<int>(seconds * 100); ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

}  // namespace

TEST_CASE("lines of GPUs are nvidia-smi's, to the byte", "[samples]") {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  const Nvml nvml;  // test/samples/fake_nvml.cpp
  const std::vector<GpuSample> samples = sample_gpus(nvml);
  REQUIRE(samples.size() == 2);
  CHECK(samples[0].pci_bus == "0000:d7:00.0");
  CHECK(samples[1].pci_bus.empty());
  constexpr std::int64_t kTime = 1'747'906'953'587'000'000;
  CHECK(gpu_csv::memory_line(samples[0], kTime) ==
        "2025/05/22 09:42:33.587, 0, Tesla V100-SXM2-32GB, 1, 32768\n");
  CHECK(gpu_csv::line(samples[0], kTime) ==
        "2025/05/22 09:42:33.587, 0, Tesla V100-SXM2-32GB, 1, 32768, 97, 41, 61, 251.34, 1530, "
        "0x0000000000000004\n");
  CHECK(gpu_csv::line(samples[1], kTime) ==
        "2025/05/22 09:42:33.587, 1, Tesla V100-SXM2-32GB, 1, 32768, [N/A], [N/A], 61, [N/A], "
        "1530, 0x0000000000000004\n");
}

TEST_CASE("lines of processes are psrecord's, to the byte", "[samples]") {
  const ProcessSample sample{.cpu_s = 3, .resident_bytes = 3 << 19, .virtual_bytes = 10 << 20};
  CHECK(cpu_log::line(1.5, 187.25, sample) ==
        "       1.500      187.250        1.500       10.000\n");
}

TEST_CASE("a process and what it has started are counted", "[samples][not_emulated]") {
  const std::vector<pid_t> own = rank_processes();
  CHECK(std::ranges::count(own, ::getpid()) == 1);
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char> memory(std::size_t{64} << 20, 1);
    volatile double sum = 0;
    for (int i = 0;; ++i) sum = sum + memory[static_cast<std::size_t>(i) % memory.size()];
  }
  const std::vector<pid_t> both = rank_processes();
  CHECK(std::ranges::count(both, child) == 1);
  CHECK(within(20, [&] { return sample_processes({child}).resident_bytes > 64 << 20; }));
  CHECK(within(20, [&] { return sample_processes({child}).cpu_s > 0.1; }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(sample_processes({child}).resident_bytes == 0);
  const auto sampled = static_cast<double>(sample_processes({::getpid()}).resident_bytes);
  CHECK(sampled == Approx(static_cast<double>(host_resident_bytes())).epsilon(0.2));
}

TEST_CASE("files are begun once, go on after a restart and end in whole lines",
          "[samples][not_emulated]") {
  const TempDir dir;
  for (int start = 0; start < 2; ++start) {
    const Sampler sampler({.folder = dir.path(), .suffix = "-n2", .interval_s = 0.01});
    CHECK(within(20, [&] { return sampler.summary().cpu_share.count >= 3; }));
    const SampleSummary summary = sampler.summary();
    REQUIRE(summary.gpus.size() == 2);
    CHECK(summary.gpus[0].used_mib.max == Approx(1).epsilon(0.001));
    CHECK(summary.gpus[0].utilization.mean == 97);
    CHECK(summary.gpus[1].utilization.count == 0);
    CHECK(summary.resident_mib.min > 1);
  }
  const auto memory = lines_of(dir / "memory-n2.csv");
  CHECK(std::ranges::count(memory,
                           "timestamp, index, name, memory.used [MiB], memory.total [MiB]") == 1);
  CHECK(memory.size() >= 1 + 2 * 2 * 3);
  CHECK(memory.size() == lines_of(dir / "gpu-n2.csv").size());
  CHECK(lines_of(dir / "cpu-n2.txt").front() ==
        "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)");
  CHECK(slurp(dir / "memory-n2.csv").back() == '\n');
}

TEST_CASE("a folder that cannot be written ends the samples and nothing else", "[samples]") {
  const Sampler sampler({.folder = "/proc/no/such", .suffix = "", .interval_s = 0.01});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(sampler.summary().cpu_share.count == 0);
}

TEST_CASE("a rank of thousands writes its line in turn, and rank 0 each time", "[samples][scale]") {
  for (const int ranks : {1, 8, 256}) {
    for (int rank = 0; rank < ranks; ++rank) CHECK(writes_line(rank, ranks, 5));
  }
  constexpr int kRanks = 8192;
  for (const std::int64_t timed : {0, 7, 511, 512, 100'003}) {
    int writers = 0;
    for (int rank = 1; rank < kRanks; ++rank) writers += writes_line(rank, kRanks, timed) ? 1 : 0;
    CHECK((writers == 15 || writers == 16));  // one of them may be rank 0
    CHECK(writes_line(0, kRanks, timed));
  }
  int lines = 0;
  for (std::int64_t timed = 0; timed < 1024; ++timed) lines += writes_line(4711, kRanks, timed);
  CHECK(lines == 2);
}

TEST_CASE("a trace of thousands of ranks is that of some hosts and of each stage",
          "[samples][scale]") {
  for (int rank = 0; rank < 64; ++rank) CHECK(records_trace(rank, 64, 8, false));
  int recorded = 0;
  for (int rank = 0; rank < 8192; ++rank) recorded += records_trace(rank, 8192, 8, false);
  CHECK(recorded == 64);
  CHECK(records_trace(4096 + 8, 8192, 8, true));
  CHECK_FALSE(records_trace(4096 + 8, 8192, 8, false));
}

TEST_CASE("a thousand hosts write as much of themselves as three", "[samples][scale]") {
  const auto looks_a_second = [](int hosts) {
    return 1 / look_interval(1, true, hosts) + (hosts - 1) / look_interval(1, false, hosts);
  };
  CHECK(looks_a_second(1) == 1);
  CHECK(looks_a_second(2) == 2);
  CHECK(looks_a_second(1024) < 3);
  // Bytes of a day with 8 GPUs a host: two lines a look and GPU, one of processes.
  constexpr double kBytesOfLook = 8 * (70 + 100) + 60;
  constexpr double kDay = 86'400;
  CHECK(looks_a_second(1024) * kBytesOfLook * kDay < 0.4e9);
  // Lines of ranks with a step of 0.6 s, of which every fourth is timed: 17 of 700 bytes each.
  CHECK(17 * 700 * kDay / (4 * 0.6) < 0.5e9);
}
