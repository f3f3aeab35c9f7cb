#include "engine/device/host_work.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cfenv>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/arena.h"
#include "engine/device/host_file.h"
#include "engine/device/numa.h"
#include "engine/device/staged_copy.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

const c10::Device kHost(c10::kCPU);

TEST_CASE("a pool takes every element of a loop once, in whole pieces", "[device]") {
  const int num_threads = GENERATE(1, 2, 7);
  HostPool pool({.threads = num_threads});
  REQUIRE(pool.num_threads() == num_threads);
  for (const std::int64_t count : {0, 1, 6, 7, 8, 1000}) {
    for (const std::int64_t grain : {1, 7, 64, 5000}) {
      std::vector<std::atomic<int>> taken(to_index(count));
      pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        if (begin % grain != 0 || end != std::min(begin + grain, count)) std::abort();
        for (std::int64_t i = begin; i < end; ++i) ++taken[to_index(i)];
      });
      for (const auto& times : taken) REQUIRE(times == 1);
    }
  }
}

TEST_CASE("a pool's thousand short loops end", "[device]") {
  HostPool pool({.threads = 4});
  std::atomic<std::int64_t> sum = 0;
  for (int i = 0; i < 1000; ++i)
    pool.parallel_for(8, 1, [&](std::int64_t begin, std::int64_t) { sum += begin; });
  REQUIRE(sum == 28'000);
}

TEST_CASE("the first exception of a loop comes out of it, and the pool goes on", "[device]") {
  HostPool pool({.threads = 3});
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> begun = 0;
    REQUIRE_THROWS_AS(pool.parallel_for(1'000'000, 1,
                                        [&](std::int64_t, std::int64_t) {
                                          ++begun;
                                          throw std::runtime_error("piece");
                                        }),
                      std::runtime_error);
    REQUIRE(begun <= 3);
    std::atomic<int> done = 0;
    pool.parallel_for(10, 1, [&](std::int64_t, std::int64_t) { ++done; });
    REQUIRE(done == 10);
  }
  REQUIRE_THROWS_AS(pool.parallel_for(1, 0, [](std::int64_t, std::int64_t) {}), Error);
  REQUIRE_THROWS_AS(HostPool({.threads = 0}), Error);
}

TEST_CASE("a pool's threads stay on the cores that they are given", "[device]") {
  const std::vector<int> one = {usable_cores().back()};
  HostPool pool({.threads = 3, .cores = one});
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> wrong = 0;
  pool.parallel_for(100, 1, [&](std::int64_t, std::int64_t) {
    if (std::this_thread::get_id() != caller && usable_cores() != one) ++wrong;
    std::this_thread::yield();
  });
  REQUIRE(wrong == 0);
}

/// A denormal, as the compiler cannot know.
float half_of_min(float min) {
  volatile float x = min;
  x = x * 0.5f;
  return x;
}

TEST_CASE("a pool's threads keep denormals whatever its maker does with them", "[device]") {
  std::jthread([] {
    if (!at::globalContext().setFlushDenormal(true)) return;  // this CPU cannot
    REQUIRE(half_of_min(1.17549435e-38f) == 0.0f);
    HostPool pool({.threads = 2});
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> flushed = 0, kept = 0;
    while (kept == 0 && flushed == 0) {
      pool.parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
        if (std::this_thread::get_id() == caller) return;
        const float half = half_of_min(1.17549435e-38f);
        ++(half == 0.0f ? flushed : kept);
      });
    }
    use_default_arithmetic();
    REQUIRE(flushed == 0);
    REQUIRE(half_of_min(1.17549435e-38f) != 0.0f);
  }).join();
}

TEST_CASE("on the CPU a job is done when it is enqueued", "[device]") {
  HostWork work(kHost, {.threads = 2});
  const Stream stream(kHost);
  std::vector<int> values(1000);
  for (int i = 1; i <= 10; ++i) {
    work.enqueue(stream, [&](HostPool& pool) {
      pool.parallel_for(1000, 10, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t k = begin; k < end; ++k) ++values[to_index(k)];
      });
    });
    REQUIRE(values == std::vector<int>(1000, i));
  }
  REQUIRE_FALSE(work.failed());
  REQUIRE_FALSE(work.waits_on_device());
  REQUIRE_NOTHROW(work.rethrow());
}

TEST_CASE("a job that throws is told to the owner, and later jobs are left out", "[device]") {
  HostWork work(kHost, {});
  const Stream stream(kHost);
  int done = 0;
  work.enqueue(stream, [&](HostPool&) { ++done; });
  REQUIRE_NOTHROW(work.enqueue(stream, [](HostPool& pool) {
    pool.parallel_for(
        4, 1, [](std::int64_t, std::int64_t) { throw Error(ErrorKind::checkpoint, "disk gone"); });
  }));
  work.enqueue(stream, [&](HostPool&) { ++done; });
  REQUIRE(done == 1);
  REQUIRE(work.failed());
  for (int i = 0; i < 2; ++i) {
    try {
      work.rethrow();
      FAIL("no error");
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::checkpoint);
      REQUIRE(std::string(error.what()) == "disk gone");
    }
  }
}

TEST_CASE("staged copies on the CPU carry every byte, from memory and files", "[device]") {
  const test::TempDir dir;
  const Stream stream(kHost);
  StagedCopy copy(kHost, {.buffer_bytes = 4096, .work = {.threads = 3}});
  for (const std::int64_t count : {1, 1000, 5'000'000}) {
    const Bytes bytes = 4 * count;
    const at::Tensor source = HostArena(bytes, {}).tensor(at::kInt, count);
    const at::Tensor back = HostArena(bytes, {}).tensor(at::kInt, count);
    auto* values = source.mutable_data_ptr<std::int32_t>();
    std::iota(values, values + count, 1);
    const auto equal = [&] {
      return std::equal(values, values + count, back.const_data_ptr<std::int32_t>());
    };
    copy.to_device(stream, back, source);
    REQUIRE(equal());
    back.mutable_data_ptr<std::int32_t>()[count - 1] = 0;
    copy.to_host(stream, back, source);
    REQUIRE(equal());
    HostFile file(dir.path(), bytes + 100);
    copy.to_host(stream, {.file = &file, .offset = 100}, source);
    back.mutable_data_ptr<std::int32_t>()[count - 1] = 0;
    copy.to_device(stream, back, FilePart{.file = &file, .offset = 100});
    REQUIRE(equal());
  }
  copy.rethrow();
}

TEST_CASE("a staged copy that cannot read tells it, and later ones do nothing", "[device]") {
  const test::TempDir dir;
  const Stream stream(kHost);
  StagedCopy copy(kHost, {});
  HostFile file(dir.path(), 100);
  const at::Tensor x = HostArena(200, {}).tensor(at::kByte, 200);
  const at::Tensor y = HostArena(200, {}).tensor(at::kByte, 200);
  x.mutable_data_ptr<std::uint8_t>()[0] = 9;
  REQUIRE_THROWS_AS(copy.to_host(stream, x.narrow(0, 0, 100), y), Error);  // unequal: at once
  REQUIRE_FALSE(copy.failed());
  copy.to_device(stream, x, FilePart{.file = &file});  // beyond the file's end
  REQUIRE(copy.failed());
  REQUIRE_THROWS_AS(copy.rethrow(), Error);
  copy.to_host(stream, y, x);
  REQUIRE(y.const_data_ptr<std::uint8_t>()[0] == 0);
}

}  // namespace
}  // namespace dstrain
