#include "engine/device/host_work.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/arena.h"
#include "engine/device/device.h"
#include "engine/device/host_file.h"
#include "engine/device/numa.h"
#include "engine/device/staged_copy.h"
#include "engine/train/execute/host_copies.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

c10::Device gpu() { return choose_device(0).device; }

bool one_queue() {
  const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return queues != nullptr && std::string(queues) == "1";
}

/// Both ways of HostWork.
HostWork::Options options(bool wait_on_device, int threads = 2) {
  return {.threads = threads, .wait_on_device = wait_on_device};
}

/// Sleeps until `done`; false after five seconds.
template <class Done>
bool comes_true(const Done& done) {
  for (const auto begin = Clock::now(); seconds_since(begin) < 5; std::this_thread::sleep_for(1ms))
    if (done()) return true;
  return false;
}

/// A folder for a HostFile: the temporary one, or here where that lies in memory.
std::unique_ptr<HostFile> make_file(Bytes bytes) {
  const test::TempDir dir;
  try {
    return std::make_unique<HostFile>(dir.path(), bytes);
  } catch (const Error&) {
    return std::make_unique<HostFile>(std::filesystem::current_path(), bytes);
  }
}

TEST_CASE("host jobs see what the stream did before, and it what they did", "[gpu][host_work]") {
  const c10::Device device = gpu();
  const bool wait_on_device = GENERATE(true, false);
  HostWork work(device, options(wait_on_device, 4));
  REQUIRE(work.waits_on_device() == wait_on_device);  // a driver without it fails this
  const Stream stream = Stream::from_pool(device);
  const StreamScope scope(stream);
  constexpr std::int64_t kCount = 1 << 20;
  const HostArena arena(4 * kCount, {.kind = HostMemory::pinned, .device = device});
  const at::Tensor host = arena.tensor(at::kInt, kCount);
  const at::Tensor x = at::zeros({kCount}, at::TensorOptions(at::kInt).device(device));
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    x.add_(1);
    host.copy_(x, /*non_blocking=*/true);
    work.enqueue(stream, [values = host.mutable_data_ptr<std::int32_t>()](HostPool& pool) {
      pool.parallel_for(kCount, 10'000, [values](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) values[i] = 3 * values[i] - 1;
      });
    });
    x.copy_(host, /*non_blocking=*/true);
    x.remainder_(1'000'003);
  }
  stream.synchronize();
  work.rethrow();
  std::int64_t expected = 0;
  for (int round = 0; round < kRounds; ++round) expected = (3 * (expected + 1) - 1) % 1'000'003;
  REQUIRE(at::equal(x, at::full({kCount}, expected, x.options())));
}

TEST_CASE("who enqueues a host job does not wait, the stream does", "[gpu][host_work]") {
  const c10::Device device = gpu();
  HostWork work(device, options(GENERATE(true, false)));
  const Stream stream = Stream::from_pool(device);
  std::atomic<bool> go = false, done = false;
  const auto begin = Clock::now();
  work.enqueue(stream, [&](HostPool&) {
    if (!comes_true([&] { return go.load(); })) throw std::runtime_error("never told to go");
    done = true;
  });
  Event after(device);
  after.record(stream);
  REQUIRE(seconds_since(begin) < 1);
  std::this_thread::sleep_for(20ms);
  REQUIRE_FALSE(after.query());
  go = true;
  after.synchronize();
  REQUIRE(done);
  work.rethrow();
}

TEST_CASE("jobs of two objects run at once", "[gpu][host_work]") {
  if (one_queue()) return;  // the second is handed over after the first there
  const c10::Device device = gpu();
  HostWork first(device, {}), second(device, {});
  const Stream a = Stream::from_pool(device), b = Stream::from_pool(device);
  std::atomic<int> here = 0;
  const auto meet = [&](HostPool&) {
    ++here;
    if (!comes_true([&] { return here == 2; })) throw std::runtime_error("alone");
  };
  first.enqueue(a, meet);
  second.enqueue(b, meet);
  synchronize(device);
  first.rethrow();
  second.rethrow();
}

TEST_CASE("a thousand jobs on three streams keep the order of streams and events",
          "[gpu][host_work]") {
  const c10::Device device = gpu();
  const bool wait_on_device = GENERATE(true, false);
  const bool one_object = GENERATE(true, false);
  constexpr std::size_t kJobs = 1000, kStreams = 3;
  std::vector<std::unique_ptr<HostWork>> works;
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < kStreams; ++i) {
    if (i == 0 || !one_object)
      works.push_back(std::make_unique<HostWork>(device, options(wait_on_device)));
    streams.push_back(Stream::from_pool(device));
  }
  const at::Tensor x = at::zeros({1 << 16}, at::TensorOptions(at::kFloat).device(device));
  synchronize(device);
  std::vector<std::atomic<bool>> done(kJobs);
  std::atomic<int> num_wrong = 0;
  std::array<std::int64_t, kStreams> last = {-1, -1, -1};
  std::mt19937 random(3);
  for (std::size_t job = 0; job < kJobs; ++job) {
    const std::size_t at = random() % kStreams, other = random() % kStreams;
    std::int64_t needed = -1;
    if (random() % 3 == 0) {  // after all that the other stream has so far
      Event reached(device);
      reached.record(streams[other]);
      reached.wait(streams[at]);
      needed = last[other];
    }
    if (random() % 4 == 0) {
      const StreamScope scope(streams[at]);
      (void)x.add(1);
    }
    const auto sleep = std::chrono::microseconds(random() % 8 == 0 ? random() % 2000 : 0);
    works[one_object ? 0 : at]->enqueue(
        streams[at], [&done, &num_wrong, job, needed, sleep, before = last[at]](HostPool& pool) {
          if (needed >= 0 && !done[to_index(needed)]) ++num_wrong;
          if (before >= 0 && !done[to_index(before)]) ++num_wrong;
          std::this_thread::sleep_for(sleep);
          std::atomic<int> sum = 0;
          pool.parallel_for(4, 1, [&](std::int64_t, std::int64_t) { ++sum; });
          if (sum != 4) ++num_wrong;
          done[job] = true;
        });
    last[at] = static_cast<std::int64_t>(job);
  }
  synchronize(device);
  for (const auto& work : works) work->rethrow();
  REQUIRE(num_wrong == 0);
  for (const auto& job : done) REQUIRE(job);
}

TEST_CASE("a job that throws lets every stream go on", "[gpu][host_work]") {
  const c10::Device device = gpu();
  HostWork work(device, options(GENERATE(true, false)));
  const Stream a = Stream::from_pool(device), b = Stream::from_pool(device);
  std::atomic<int> num_later = 0;
  for (int job = 0; job < 20; ++job) {
    work.enqueue(a, [job, &num_later](HostPool&) {
      std::this_thread::sleep_for(2ms);
      if (job == 5) throw Error(ErrorKind::checkpoint, "disk gone");
      if (job > 5) ++num_later;
    });
    Event reached(device);
    reached.record(a);
    reached.wait(b);
    work.enqueue(b, [](HostPool&) {});
  }
  a.synchronize();
  b.synchronize();
  REQUIRE(work.failed());
  REQUIRE(num_later == 0);
  REQUIRE_THROWS_AS(work.rethrow(), Error);
  work.enqueue(a, [&](HostPool&) { ++num_later; });
  a.synchronize();
  REQUIRE(num_later == 0);
}

TEST_CASE("host work that ends early leaves out jobs whose turn has not come", "[gpu][host_work]") {
  const c10::Device device = gpu();
  const bool wait_on_device = GENERATE(true, false);
  if (one_queue() || !wait_on_device) return;
  HostWork blocking(device, {});
  const Stream stream = Stream::from_pool(device);
  std::atomic<bool> go = false, ran = false;
  blocking.enqueue(stream, [&](HostPool&) { (void)comes_true([&] { return go.load(); }); });
  {
    HostWork work(device, {});
    work.enqueue(stream, [&](HostPool&) { ran = true; });
  }
  go = true;
  stream.synchronize();
  REQUIRE_FALSE(ran);
  REQUIRE_FALSE(blocking.failed());
}

TEST_CASE("host work comes and goes without a trace", "[gpu][host_work]") {
  const c10::Device device = gpu();
  const Stream stream = Stream::from_pool(device);
  std::atomic<int> num_done = 0;
  for (int i = 0; i < 100; ++i) {
    HostWork work(device, {});
    work.enqueue(stream, [&](HostPool&) { ++num_done; });
    if (i % 2 == 0) stream.synchronize();
  }
  stream.synchronize();
  REQUIRE(num_done >= 50);
}

TEST_CASE("a pinned arena is page-locked as long as a tensor of it lives", "[gpu][host_work]") {
  const DeviceFacts facts = choose_device(0);
  at::Tensor part;
  {
    const HostArena arena(
        (Bytes{70} << 20) + 4,
        {.kind = HostMemory::pinned, .device = facts.device, .pci_bus = facts.pci_bus});
    REQUIRE(arena.pinned());
    part = arena.tensor(at::kFloat, 1 << 20, Bytes{64} << 20);
  }
  REQUIRE(part.is_pinned());
  const at::Tensor x = at::arange(1 << 20, at::TensorOptions(at::kFloat).device(facts.device));
  part.copy_(x, /*non_blocking=*/true);
  synchronize(facts.device);
  REQUIRE(part[12'345].item<float>() == 12'345);
  const HostArena pageable(1 << 20, {.kind = HostMemory::pageable, .device = facts.device});
  REQUIRE_FALSE(pageable.pinned());
  REQUIRE_FALSE(pageable.tensor(at::kFloat, 10).is_pinned());
}

TEST_CASE("staged copies carry every byte between GPU, memory and file", "[gpu][host_work]") {
  const c10::Device device = gpu();
  const bool wait_on_device = GENERATE(true, false);
  const Bytes buffer_bytes = GENERATE(Bytes{64} << 10, Bytes{32} << 20);
  StagedCopy in(device, {.buffer_bytes = buffer_bytes, .work = options(wait_on_device, 3)});
  StagedCopy out(device, {.buffer_bytes = buffer_bytes, .work = options(wait_on_device, 3)});
  const Stream up = Stream::from_pool(device), down = Stream::from_pool(device);
  const auto on_gpu = at::TensorOptions(at::kByte).device(device);
  for (const Bytes bytes :
       {Bytes{1}, Bytes{65'536}, Bytes{65'537}, Bytes{10'000'001}, Bytes{100} << 20}) {
    CAPTURE(bytes, buffer_bytes);
    const auto file = make_file(bytes + 7);
    const at::Tensor x = at::randint(256, {bytes}, on_gpu);
    const at::Tensor y = at::zeros({bytes}, on_gpu);
    synchronize(device);
    const auto round_trip = [&](const auto& put, const auto& get) {
      y.zero_();
      synchronize(device);
      put(down);
      Event written(device);
      written.record(down);
      written.wait(up);
      get(up);
      up.synchronize();
      in.rethrow();
      out.rethrow();
      REQUIRE(at::equal(x, y));
    };
    for (const HostMemory kind : {HostMemory::pageable, HostMemory::pinned}) {
      const HostArena arena(bytes, {.kind = kind, .device = device});
      const at::Tensor host = arena.tensor(at::kByte, bytes);
      round_trip([&](const Stream& s) { out.to_host(s, host, x); },
                 [&](const Stream& s) { in.to_device(s, y, host); });
      // Both directions of one object, on one stream.
      round_trip([&](const Stream& s) { in.to_host(s, host, x); },
                 [&](const Stream& s) { in.to_device(s, y, host); });
    }
    const FilePart part{.file = file.get(), .offset = 7};
    round_trip([&](const Stream& s) { out.to_host(s, part, x); },
               [&](const Stream& s) { in.to_device(s, y, part); });
  }
}

TEST_CASE("copies in pageable memory are the values in fp32", "[gpu][host_work]") {
  const DeviceFacts facts = choose_device(0);
  const auto on_gpu = at::TensorOptions(facts.device);
  HostCopies copies(facts.device, facts.pci_bus);
  std::vector<at::Tensor> sources, made;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t count : {1, 65'537, 30'000'000})
      sources.push_back(at::randint(1 << 20, {count}, on_gpu).to(dtype));
    sources.push_back(at::randint(1 << 20, {300, 700}, on_gpu).to(dtype).t());
  }
  sources.push_back(at::randint(100, {5}, at::TensorOptions(at::kFloat)));  // rests on the host
  for (const at::Tensor& source : sources) made.push_back(copies.copy(source, at::kFloat));
  copies.finish();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    CAPTURE(i);
    REQUIRE((made[i].is_cpu() && made[i].scalar_type() == at::kFloat && !made[i].is_pinned()));
    REQUIRE(at::equal(made[i], sources[i].cpu().to(at::kFloat)));
  }
  REQUIRE(made.back().const_data_ptr() != sources.back().const_data_ptr());
}

TEST_CASE("many staged copies in both directions at once are all right", "[gpu][host_work]") {
  const c10::Device device = gpu();
  StagedCopy copy(device, {.buffer_bytes = Bytes{128} << 10, .work = {.threads = 2}});
  const std::array<Stream, 2> streams = {Stream::from_pool(device), Stream::from_pool(device)};
  constexpr std::int64_t kCount = 300'000, kTensors = 24;
  const HostArena arena(kTensors * kCount * 4, {});
  std::vector<at::Tensor> sources, copies;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    sources.push_back(at::randint(1 << 20, {kCount}, at::TensorOptions(at::kInt).device(device)));
    copies.push_back(at::zeros_like(sources.back()));
  }
  synchronize(device);
  for (std::int64_t i = 0; i < kTensors; ++i) {
    const at::Tensor host = arena.tensor(at::kInt, kCount, i * kCount * 4);
    const Stream& stream = streams[to_index(i % 2)];
    copy.to_host(stream, host, sources[to_index(i)]);
    copy.to_device(stream, copies[to_index(i)], host);
  }
  for (const Stream& stream : streams) stream.synchronize();
  copy.rethrow();
  for (std::int64_t i = 0; i < kTensors; ++i)
    REQUIRE(at::equal(sources[to_index(i)], copies[to_index(i)]));
}

TEST_CASE("a staged copy whose file fails ends with the error", "[gpu][host_work]") {
  const c10::Device device = gpu();
  StagedCopy copy(device, {.buffer_bytes = Bytes{64} << 10});
  const Stream stream = Stream::from_pool(device);
  const auto file = make_file(Bytes{1} << 20);
  const at::Tensor x = at::zeros({Bytes{2} << 20}, at::TensorOptions(at::kByte).device(device));
  synchronize(device);
  copy.to_host(stream, {.file = file.get()}, x);  // beyond its end
  copy.to_device(stream, x, FilePart{.file = file.get()});
  stream.synchronize();
  REQUIRE(copy.failed());
  REQUIRE_THROWS_AS(copy.rethrow(), Error);
}

TEST_CASE("host work needs no more than one hardware queue", "[gpu]") {
  if (one_queue()) return;
  const std::string command =
      fmt::format("CUDA_DEVICE_MAX_CONNECTIONS=1 timeout 120 '{}' '[host_work]'",
                  std::filesystem::read_symlink("/proc/self/exe").string());
  REQUIRE(std::system(command.c_str()) == 0);
}

/// Prints GB/s of `copy`, the best of some.
template <class Copy>
void print_rate(const std::string& name, Bytes bytes, const Stream& stream, const Copy& copy) {
  double best_s = 1e9;
  for (int i = 0; i < 6; ++i) {
    const auto begin = Clock::now();
    copy();
    stream.synchronize();
    best_s = std::min(best_s, seconds_since(begin));
  }
  std::printf("| %s | %.1f |\n", name.c_str(), 1e-9 * static_cast<double>(bytes) / best_s);
  std::fflush(stdout);
}

TEST_CASE("rates of host memory and files", "[.bench][host_work_bench]") {
  const DeviceFacts facts = choose_device(0);
  const Stream stream = Stream::from_pool(facts.device);
  const Bytes bytes = Bytes{2} << 30;
  const at::Tensor x = at::zeros({bytes}, at::TensorOptions(at::kByte).device(facts.device));
  synchronize(facts.device);
  std::printf("%zu cores near %s of %zu\n| copy of 2 GiB | GB/s |\n| --- | --- |\n",
              cores_near(facts.pci_bus).size(), facts.pci_bus.c_str(), usable_cores().size());
  std::vector<HostArena> arenas;
  for (const HostMemory kind : {HostMemory::pageable, HostMemory::pinned}) {
    const auto begin = Clock::now();
    arenas.emplace_back(
        bytes, HostArena::Options{.kind = kind, .device = facts.device, .pci_bus = facts.pci_bus});
    std::printf("| %s arena made | %.1f |\n", kind == HostMemory::pinned ? "pinned" : "pageable",
                1e-9 * static_cast<double>(bytes) / seconds_since(begin));
  }
  const at::Tensor pageable = arenas[0].tensor(at::kByte, bytes);
  const at::Tensor pinned = arenas[1].tensor(at::kByte, bytes);
  const auto file = make_file(bytes);
  for (const int threads : {1, 2, 4, 8}) {
    StagedCopy copy(facts.device,
                    {.work = {.threads = threads, .cores = cores_near(facts.pci_bus)}});
    const auto both = [&](const std::string& name, const auto& host) {
      const auto text = [&](const char* way) {
        return fmt::format("{} {}, {} threads", name, way, threads);
      };
      print_rate(text("to device"), bytes, stream, [&] { copy.to_device(stream, x, host); });
      print_rate(text("to host"), bytes, stream, [&] { copy.to_host(stream, host, x); });
    };
    if (threads == 1) both("pinned", pinned);
    both("pageable", pageable);
    both(file->direct() ? "file past the page cache" : "file", FilePart{.file = file.get()});
    copy.rethrow();
  }
  const at::Tensor values =
      at::zeros({bytes / 4}, at::TensorOptions(at::kFloat).device(facts.device));
  const auto print_copies = [&](const char* name, const auto& copy) {
    std::vector<at::Tensor> kept;  // each in new memory, as a checkpoint's
    const auto start = Clock::now();
    for (int i = 0; i < 4; ++i) kept.push_back(copy());
    std::printf("| %s | %.1f |\n", name, 4e-9 * static_cast<double>(bytes) / seconds_since(start));
  };
  print_copies("values by the driver", [&] { return values.to(at::kCPU); });
  HostCopies copies(facts.device, facts.pci_bus);
  print_copies("values for a checkpoint", [&] {
    const at::Tensor copy = copies.copy(values, at::kFloat);
    copies.finish();
    return copy;
  });
  HostWork work(facts.device, {});
  const auto begin = Clock::now();
  constexpr int kJobs = 10'000;
  for (int i = 0; i < kJobs; ++i) work.enqueue(stream, [](HostPool&) {});
  stream.synchronize();
  std::printf("| empty job, us | %.1f |\n", 1e6 * seconds_since(begin) / kJobs);
}

}  // namespace
}  // namespace dstrain
