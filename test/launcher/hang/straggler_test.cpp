#include "launcher/hang/straggler.h"

#include <ctime>

#include "test/support/catch.h"

namespace dstrain::launcher {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

/// Ranks of one node that make steps of a given busy time; all wait for the slowest.
struct Node {
  explicit Node(std::vector<std::int64_t> busy) : busy_ms(std::move(busy)) {
    for (int rank = 0; std::cmp_less(rank, busy_ms.size()); ++rank)
      pace.ranks.push_back({.rank = rank});
    (void)watch.add(pace, "h2");
  }
  std::vector<std::string> steps(int count) {
    const std::int64_t step_ms = std::ranges::max(busy_ms) + 5;
    for (std::size_t i = 0; i < busy_ms.size(); ++i) {
      pace.ranks[i].steps += count;
      pace.ranks[i].steps_ns += count * step_ms * kMillisecond;
      pace.ranks[i].waited_ns += count * (step_ms - busy_ms[i]) * kMillisecond;
    }
    return watch.add(pace, "h2");
  }

  std::vector<std::int64_t> busy_ms;
  PaceMessage pace;
  StragglerWatch watch;
};

}  // namespace

TEST_CASE("a rank that works much longer than the others is named with its host", "[straggler]") {
  Node node({50, 50, 52, 90});
  const auto notes = node.steps(20);
  REQUIRE(notes.size() == 1);
  REQUIRE(notes.front() ==
          "rank 3 on h2 is slow: 1.8 x the median of the others (90 ms against 50 ms of own work a "
          "step, over 20 steps); the others wait for it");
}

TEST_CASE("half as long again is no straggler", "[straggler]") {
  Node node({50, 50, 50, 75});
  REQUIRE(node.steps(20).empty());
}

TEST_CASE("fewer than twenty steps say nothing, also in many small parts", "[straggler]") {
  Node node({50, 50, 200});
  REQUIRE(node.steps(19).empty());
  REQUIRE(node.steps(1).size() == 1);
}

TEST_CASE("a slow rank is named once in a hundred steps", "[straggler]") {
  Node node({50, 100});
  int named = 0;
  for (int i = 0; i < 50; ++i) named += static_cast<int>(node.steps(4).size());
  REQUIRE(named == 2);
}

TEST_CASE("one slow moment long ago is forgotten", "[straggler]") {
  Node node({50, 50, 200});
  REQUIRE(node.steps(20).size() == 1);
  node.busy_ms = {50, 50, 50};
  for (int i = 0; i < 20; ++i) REQUIRE(node.steps(20).empty());
}

TEST_CASE("differences that cost next to nothing are not told", "[straggler]") {
  Node tiny({1, 1, 2});
  REQUIRE(tiny.steps(100).empty());
}

TEST_CASE("ranks of all nodes are compared, once each has made its steps", "[straggler]") {
  StragglerWatch watch;
  const auto at = [](int rank, std::int64_t steps, std::int64_t busy_ms) {
    return PaceMessage{{{.rank = rank,
                         .steps = steps,
                         .steps_ns = steps * 100 * kMillisecond,
                         .waited_ns = steps * (100 - busy_ms) * kMillisecond}}};
  };
  for (const std::int64_t steps : {0, 30}) {
    REQUIRE(watch.add(at(0, steps, 20), "h1").empty());
    REQUIRE(watch.add(at(1, steps, 20), "h2").empty());
    const auto notes = watch.add(at(2, steps, 60), "h3");
    REQUIRE(notes.size() == (steps == 0 ? 0 : 1));
    if (!notes.empty()) REQUIRE(notes.front().starts_with("rank 2 on h3 is slow: 3.0 x"));
  }
}

TEST_CASE("16,384 ranks are compared in a moment, each with the others' median",
          "[straggler][scale]") {
  std::vector<std::int64_t> busy(16'384, 50);
  for (std::size_t i = 0; i < busy.size(); i += 2) busy[i] = 60;
  busy[777] = 200;
  busy[9'000] = 120;
  Node node(std::move(busy));
  const std::clock_t begin = std::clock();
  const auto notes = node.steps(20);
  const double cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  REQUIRE(notes.size() == 2);
  REQUIRE(notes[0].starts_with("rank 777 on h2 is slow: 3.3 x the median of the others (200 ms "));
  REQUIRE(notes[1].starts_with("rank 9000 on h2 is slow: 2.0 x"));
  REQUIRE(cpu_s < 1);  // in the controller's only thread; 16 s when each rank sorted all others
}

TEST_CASE("the median is that of the others, odd and even in number", "[straggler]") {
  Node three({40, 60, 100});
  auto notes = three.steps(20);
  REQUIRE(notes.size() == 1);
  REQUIRE(notes.front().starts_with(
      "rank 2 on h2 is slow: 2.0 x the median of the others (100 ms against 50 ms"));
  Node four({40, 50, 60, 100});
  notes = four.steps(20);
  REQUIRE(notes.size() == 1);
  REQUIRE(notes.front().starts_with(
      "rank 3 on h2 is slow: 2.0 x the median of the others (100 ms against 50 ms"));
}

TEST_CASE("ranks are compared with those of their stage of a pipeline", "[straggler]") {
  Node node({50, 50, 100, 100, 200});
  for (const int rank : {2, 3}) node.pace.ranks[static_cast<std::size_t>(rank)].stage = 1;
  node.pace.ranks[4].stage = 2;
  REQUIRE(node.steps(20).empty());
  node.busy_ms[3] = 300;
  const auto notes = node.steps(20);
  REQUIRE(notes.size() == 1);
  REQUIRE(notes.front().starts_with("rank 3 on"));
}

TEST_CASE("after a restart of the job the count begins anew", "[straggler]") {
  Node node({50, 100});
  REQUIRE(node.steps(20).size() == 1);
  for (RankPace& rank : node.pace.ranks) rank = {.rank = rank.rank};
  REQUIRE(node.steps(10).empty());
  REQUIRE(node.steps(10).empty());
  REQUIRE(node.steps(10).size() == 1);
}

TEST_CASE("a rank alone has nobody to be slower than", "[straggler]") {
  Node node({50});
  REQUIRE(node.steps(100).empty());
}

}  // namespace dstrain::launcher
