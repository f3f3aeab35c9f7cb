#include "engine/trace/clocks.h"

#include <random>

#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::trace;

namespace {

constexpr std::int64_t kNow = 1'700'000'000'000'000'000;

std::vector<HostClock> hosts(std::size_t count) {
  std::vector<HostClock> made;
  for (std::size_t h = 0; h < count; ++h) made.push_back({.host = "n" + std::to_string(h)});
  return made;
}

}  // namespace

TEST_CASE("1,000 random offsets and drifts lie inside the interval that is told", "[trace]") {
  std::mt19937_64 random(3);
  const auto uniform = [&](std::int64_t min, std::int64_t max) {
    return std::uniform_int_distribution<std::int64_t>(min, max)(random);
  };
  for (int round = 0; round < 1000; ++round) {
    const auto count = static_cast<std::size_t>(uniform(2, 5));
    std::vector<std::int64_t> ahead(count);  // the host's clock shows so much more
    std::vector<double> drift(count);
    for (std::size_t h = 0; h < count; ++h) {
      ahead[h] = h == 0 ? 0 : uniform(-50'000'000, 50'000'000);
      drift[h] = h == 0 ? 0 : static_cast<double>(uniform(-45, 45)) * 1e-6;
    }
    ClockSolver solver(hosts(count));
    const std::int64_t window = 2'000'000'000;
    std::int64_t first = INT64_MAX;
    std::int64_t last = INT64_MIN;
    for (std::uint64_t i = 0; i < 100; ++i) {
      const std::int64_t begin = kNow + static_cast<std::int64_t>(i) * (window / 100);
      std::vector<std::int64_t> starts(count);
      for (auto& start : starts) start = begin + uniform(0, 3'000'000);
      const std::int64_t ready = *std::ranges::max_element(starts);
      for (std::size_t h = 0; h < count; ++h) {
        const std::int64_t end = ready + uniform(1000, 200'000);
        const auto shown = [&](std::int64_t t) -> std::int64_t {
          return t + ahead[h] + std::llround(drift[h] * static_cast<double>(t - kNow));
        };
        solver.add(h, i, 1, shown(starts[h]), shown(end));
        first = std::min(first, shown(end));
        last = std::max(last, shown(end));
      }
    }
    const std::int64_t middle = first + (last - first) / 2;
    for (const HostClock& host : solver.solve()) {
      const auto h = static_cast<std::size_t>(host.host[1] - '0');
      const double at_middle =
          static_cast<double>(ahead[h]) + drift[h] * static_cast<double>(middle - kNow);
      REQUIRE(host.bounded);
      REQUIRE_FALSE(host.stepped);
      REQUIRE(std::abs(static_cast<double>(host.offset_ns) + at_middle) <=
              static_cast<double>(host.half_interval_ns) + 2500);  // 50 ppm of the greatest offset
      REQUIRE(host.half_interval_ns < 2'000'000);
    }
  }
}

TEST_CASE("a clock that was set is named, and its steps are put right one by one", "[trace]") {
  ClockSolver solver(hosts(3));
  const auto shown = [](std::size_t h, std::int64_t step, std::int64_t t) {
    return h == 2 ? t + (step < 5 ? 1'000'000 : 9'000'000) : t;
  };
  for (std::int64_t step = 1; step <= 8; ++step) {
    for (std::int64_t i = 0; i < 10; ++i) {
      const std::int64_t begin = kNow + step * 100'000'000 + i * 1'000'000;
      for (std::size_t h = 0; h < 3; ++h) {
        const std::int64_t start = begin + static_cast<std::int64_t>(h) * 1000;
        solver.add(h, static_cast<std::uint64_t>(step * 100 + i), step, shown(h, step, start),
                   shown(h, step, begin + 10'000));
      }
    }
  }
  const auto solved = solver.solve();
  REQUIRE_FALSE(solved[1].stepped);
  REQUIRE(solved[2].stepped);
  REQUIRE(solved[2].pieces.size() == 8);
  for (const std::int64_t step : {1, 4, 5, 8}) {
    const std::int64_t t = kNow + step * 100'000'000 + 5'000'000;
    REQUIRE(std::abs(solved[2].align(shown(2, step, t)) - t) <= 12'000);
  }
}

TEST_CASE("measured offsets are followed between the samples", "[trace]") {
  const test::TempDir dir;
  test::spit(dir / "clocks.jsonl",
             "{\"t_ns\": 1000000, \"host\": \"n1\", \"offset_ns\": 100, \"bound_ns\": 10}\n"
             "{\"t_ns\": 3000000, \"host\": \"n1\", \"offset_ns\": 300, \"bound_ns\": 30}\n"
             "{\"t_ns\": \"x\", \"host\": \"n1\"}\n{\"t_ns\": 30");
  ClockFile file = read_clocks(dir / "clocks.jsonl");
  REQUIRE(file.broken_lines == 2);
  REQUIRE(file.hosts["n1"].size() == 2);
  auto made = hosts(2);
  made[1].samples = file.hosts["n1"];
  ClockSolver solver(made);
  const auto solved = solver.solve();
  REQUIRE(solved[1].align(2'000'000) == 2'000'000 - 200);
  REQUIRE(solved[1].align(9'000'000) == 9'000'000 - 300);
  REQUIRE(solved[1].half_interval_ns == 30);
}
