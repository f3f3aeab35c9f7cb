#include "engine/train/measure/measure_host.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/device/arena.h"
#include "engine/device/host_file.h"
#include "engine/device/host_pool.h"
#include "engine/device/numa.h"
#include "engine/device/pinned.h"
#include "engine/device/stream.h"
#include "engine/kernels/optimizer/optimizer.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kMebibyte = Bytes{1} << 20;
constexpr double kHostTimed_s = 1.0;
constexpr std::int64_t kTimedElements = std::int64_t{32} << 20;  ///< far beyond any cache
constexpr std::int64_t kTimedGrain = std::int64_t{1} << 16;      ///< a multiple of 128
/// AdamW with fp32 states: gradient, master and moments read, the last two and the copy written.
constexpr double kUpdateBytes = 4 + 2 * 12 + 2;

/// Seconds of one call, after one that warms up.
double time_host_calls(const std::function<void()>& work) {
  work();
  const auto start = Clock::now();
  int calls = 0;
  do {
    work();
    ++calls;
  } while (seconds_since(start) < kHostTimed_s);
  return seconds_since(start) / calls;
}

/// Copies in both directions at once, each on a stream of its own.
class DuplexCopies {
 public:
  DuplexCopies(c10::Device device, Bytes bytes)
      : in_(Stream::from_pool(device)),
        out_(Stream::from_pool(device)),
        host_in_(host_tensor({bytes}, at::kByte, device).fill_(1)),
        host_out_(host_tensor({bytes}, at::kByte, device).fill_(1)),
        device_in_(at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device))),
        device_out_(at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device))) {
    synchronize(device);
  }
  void run() {
    {
      const StreamScope scope(in_);
      device_in_.copy_(host_in_, /*non_blocking=*/true);
    }
    {
      const StreamScope scope(out_);
      host_out_.copy_(device_out_, /*non_blocking=*/true);
    }
    in_.synchronize();
    out_.synchronize();
  }
  [[nodiscard]] double bytes() const { return 2.0 * static_cast<double>(host_in_.nbytes()); }

 private:
  Stream in_, out_;
  at::Tensor host_in_, host_out_, device_in_, device_out_;
};

/// a = b + s c, three arrays: the STREAM triad (McCalpin 1995). In bytes that memory moves: four
/// transfers an element, as a line is fetched before it is written.
double triad_rate(HostPool& pool) {
  at::Tensor a = at::zeros({kTimedElements}), b = at::full({kTimedElements}, 1.0f),
             c = at::full({kTimedElements}, 2.0f);
  auto* to = a.mutable_data_ptr<float>();
  const auto* left = b.const_data_ptr<float>();
  const auto* right = c.const_data_ptr<float>();
  const double seconds = time_host_calls([&] {
    pool.parallel_for(kTimedElements, kTimedGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = left[i] + 3.0f * right[i];
    });
  });
  return 4.0 * 4.0 * static_cast<double>(kTimedElements) / seconds;
}

/// AdamW on the CPU, as an offloaded group is updated.
class CpuUpdate {
 public:
  CpuUpdate()
      : step_{.master = at::zeros({kTimedElements}),
              .moments = {at::zeros({kTimedElements}), at::zeros({kTimedElements})},
              .gradient = at::full({kTimedElements}, 0.5f),
              .compute = at::zeros({kTimedElements}, at::kBFloat16),
              .rule = optimizer::AdamW{.lr = 1e-4}},
        control_(at::zeros({optimizer::kControlSize})) {
    auto* control = control_.mutable_data_ptr<float>();
    control[optimizer::kGradientFactor] = 1;
    control[optimizer::kCorrection1] = control[optimizer::kCorrection2] = 0.1f;
  }
  [[nodiscard]] double rate(HostPool& pool) {
    const double seconds = time_host_calls([&] {
      pool.parallel_for(kTimedElements, kTimedGrain, [&](std::int64_t begin, std::int64_t end) {
        optimizer::update_range(step_, control_, begin, end);
      });
    });
    return kUpdateBytes * static_cast<double>(kTimedElements) / seconds;
  }

 private:
  optimizer::Step step_;
  at::Tensor control_;
};

struct FileRates {
  double read = 0, write = 0;
};

FileRates file_rates(const std::filesystem::path& directory) {
  constexpr Bytes kSize = 512 * kMebibyte;
  HostFile file(directory, kSize);
  if (!file.direct())
    throw Error(ErrorKind::usage, directory.string() + " has no access past the page cache");
  HostPool pool({.threads = 4});
  const HostArena memory(kSize, {});
  const auto pass = [&](auto&& work) {
    const auto start = Clock::now();
    pool.parallel_for(kSize, HostFile::kPiece, [&](std::int64_t begin, std::int64_t end) {
      work(begin, std::span(memory.data() + begin, static_cast<std::size_t>(end - begin)));
    });
    return static_cast<double>(kSize) / seconds_since(start);
  };
  FileRates rates;
  rates.write = pass([&](Bytes at, std::span<std::byte> from) { file.write(at, from); });
  rates.read = pass([&](Bytes at, std::span<std::byte> into) { file.read(at, into); });
  return rates;
}

}  // namespace

void measure_host(const DeviceFacts& device, MeasuredRates& rates,
                  const std::function<void(const std::string&)>& tell) {
  const auto say = [&](const std::string& what, double value) {
    tell(fmt::format("{:<34} {:>9.1f} GB/s", what, value * 1e-9));
  };
  const auto cores = cores_near(device.pci_bus);
  const auto all = static_cast<int>(cores.size());
  CpuUpdate update;
  for (const int threads : std::set<int>{1, std::max(1, all / 2), all}) {
    HostPool pool({.threads = threads, .cores = cores});
    const double triad = triad_rate(pool), updated = update.rate(pool);
    say(fmt::format("host memory, triad, threads: {}", threads), triad);
    say(fmt::format("AdamW on the CPU, threads: {}", threads), updated);
    rates.host_memory_bytes_per_s = std::max(rates.host_memory_bytes_per_s, triad);
    if (updated <= rates.host_update_bytes_per_s) continue;
    rates.host_update_bytes_per_s = updated;
    rates.host_threads = threads;
  }
  if (device.is_cuda()) {
    DuplexCopies duplex(device.device, 256 * kMebibyte);
    rates.host_duplex_bytes_per_s = duplex.bytes() / time_host_calls([&] { duplex.run(); });
    say("host link, both directions", rates.host_duplex_bytes_per_s);
    HostPool pool({.threads = rates.host_threads, .cores = cores});
    std::jthread copies([&](const std::stop_token& stop) {
      make_current(device.device);
      while (!stop.stop_requested()) duplex.run();
    });
    rates.host_update_dma_bytes_per_s = update.rate(pool);
    say("AdamW on the CPU beside copies", rates.host_update_dma_bytes_per_s);
  }
  {
    const auto start = Clock::now();
    const HostArena arena(
        1024 * kMebibyte,
        {.kind = HostMemory::pinned, .device = device.device, .pci_bus = device.pci_bus});
    rates.arena_s_per_gib = seconds_since(start);
    tell(fmt::format("{:<34} {:>9.2f} s/GiB", "host memory, taken and locked",
                     rates.arena_s_per_gib));
  }
  try {
    const FileRates file = file_rates(std::filesystem::temp_directory_path());
    rates.file_read_bytes_per_s = file.read;
    rates.file_write_bytes_per_s = file.write;
    say("file, read", file.read);
    say("file, written", file.write);
  } catch (const std::exception& refused) {  // the figure is left out, not the others
    tell(fmt::format("{:<34} not measured: {}; TMPDIR names another directory", "file",
                     refused.what()));
  }
}

}  // namespace dstrain
