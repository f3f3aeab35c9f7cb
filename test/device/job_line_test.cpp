#include "engine/device/job_line.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "test/support/catch.h"

namespace dstrain {
namespace {

using Flags = std::vector<std::uint32_t>;
Flags no_flags() { return Flags(JobLine::kMaxLanes * JobLine::kFlagStride); }

/// What a GPU does between a job's hand-over and the next work of its stream.
void wait_for(Flags& flags, JobLine::Turn turn) {
  const std::atomic_ref flag(flags[turn.lane * JobLine::kFlagStride]);
  while (static_cast<std::int32_t>(flag.load(std::memory_order_acquire) - turn.number) < 0)
    std::this_thread::yield();
}

/// A stream of a GPU: work in order, on a thread of its own.
void run_stream(JobLine& line, Flags& flags, int jobs, unsigned seed, const JobLine::Job& job) {
  std::mt19937 random(seed);
  for (int i = 0; i < jobs; ++i) {
    const auto turn = line.issue(&random);
    if (!turn) return;
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    line.hand_over(*turn, job);
    wait_for(flags, *turn);
  }
}

TEST_CASE("streams beside each other wait for their own jobs, one of which runs at a time",
          "[device]") {
  Flags flags = no_flags();
  JobLine line({.threads = 3}, flags.data());
  // Neither is atomic: what a stream's thread sees after its wait, the job has written.
  int num_jobs = 0;
  std::array<int, 4> of_stream{};
  std::vector<std::jthread> streams;
  for (unsigned s = 0; s < of_stream.size(); ++s) {
    streams.emplace_back([&, s] {
      for (int i = 0; i < 250; ++i) {
        run_stream(line, flags, 1, s * 1000 + static_cast<unsigned>(i), [&, s](HostPool& pool) {
          ++num_jobs;
          std::array<int, 8> parts{};
          pool.parallel_for(8, 1, [&](std::int64_t begin, std::int64_t) {
            parts[static_cast<std::size_t>(begin)] = 1;
          });
          for (const int part : parts) of_stream[s] += part;
        });
        if (of_stream[s] != 8 * (i + 1)) std::abort();
      }
    });
  }
  streams.clear();
  line.close();
  REQUIRE(num_jobs == 1000);
  line.rethrow();
}

TEST_CASE("a job that throws lets all streams go on, and none runs after it", "[device]") {
  for (int round = 0; round < 20; ++round) {
    Flags flags = no_flags();
    JobLine line({.threads = 2}, flags.data());
    std::atomic<int> num_jobs = 0;
    std::vector<std::jthread> streams;
    for (unsigned s = 0; s < 3; ++s) {
      streams.emplace_back([&, s] {
        run_stream(line, flags, 50, s, [&](HostPool&) {
          if (++num_jobs == 20) throw std::runtime_error("job 20");
        });
      });
    }
    streams.clear();
    REQUIRE(num_jobs == 20);
    REQUIRE(line.failed());
    REQUIRE_THROWS_AS(line.rethrow(), std::runtime_error);
  }
}

TEST_CASE("closing waits for jobs handed over, and lets go who waits for others", "[device]") {
  for (int round = 0; round < 50; ++round) {
    Flags flags = no_flags();
    auto line = std::make_shared<JobLine>(HostPool::Options{.threads = 2}, flags.data());
    std::atomic<int> num_done = 0;
    const auto job = [&](HostPool&) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      ++num_done;
    };
    std::array<JobLine::Turn, 4> turns{};
    for (auto& turn : turns) turn = *line->issue(&flags);
    for (std::size_t i = 0; i < 3; ++i) line->hand_over(turns[i], job);
    std::jthread waiting([&flags, turn = turns[3]] { wait_for(flags, turn); });
    line->close();
    REQUIRE(num_done == 3);
    waiting.join();
    line->hand_over(turns[3], job);  // late
    REQUIRE(num_done == 3);
  }
}

TEST_CASE("without flags who hands a job over performs it", "[device]") {
  JobLine line({.threads = 2}, nullptr);
  const std::thread::id here = std::this_thread::get_id();
  int num_done = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        line.hand_over(*line.issue(&line), [&](HostPool&) { ++num_done; });  // in turns
    });
  }
  threads.clear();
  REQUIRE(num_done == 200);
  line.hand_over(*line.issue(&here), [&](HostPool&) {
    REQUIRE(std::this_thread::get_id() == here);
    throw std::runtime_error("here");
  });
  REQUIRE_FALSE(line.issue(&here));
  REQUIRE_THROWS_AS(line.rethrow(), std::runtime_error);
}

}  // namespace
}  // namespace dstrain
