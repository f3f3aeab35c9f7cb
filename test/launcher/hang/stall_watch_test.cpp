#include "launcher/hang/stall_watch.h"

#include "test/support/catch.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr HangLimit fixed(double limit_s) {
  return {.kind = HangLimit::Kind::fixed, .seconds = limit_s};
}

/// Looks once a period at one rank that moves when told to.
struct Watched {
  explicit Watched(HangLimit limit = {}) : watch(limit) {}

  std::vector<Stall> look(bool moves, StallWatch::Clock::duration later = seconds(1)) {
    now += later;
    if (moves) ++progress;
    const RankProgress rank{.rank = 3, .section = section, .progress = progress};
    return watch.look(now, std::span(&rank, 1));
  }
  /// Seconds without progress until a stall is told; -1 when `max` pass without.
  int stands_until_told(int max) {
    for (int second = 1; second <= max; ++second) {
      const auto stalls = look(/*moves=*/false);
      if (!stalls.empty()) {
        told = stalls.front();
        return second;
      }
    }
    return -1;
  }

  StallWatch watch;
  StallWatch::Clock::time_point now = StallWatch::Clock::now();
  RankSection section = RankSection::step;
  std::int64_t progress = 0;
  Stall told;
};

}  // namespace

TEST_CASE("a rank that moves never stalls", "[stall]") {
  Watched rank(fixed(2));
  for (int i = 0; i < 100; ++i) REQUIRE(rank.look(/*moves=*/true).empty());
}

TEST_CASE("a fixed limit holds in every section", "[stall]") {
  using enum RankSection;
  Watched rank(fixed(10));
  rank.section = GENERATE(init, data, step, evaluate, checkpoint, finish);
  (void)rank.look(true);
  // Looks of a short period count at most two periods each.
  REQUIRE(rank.stands_until_told(20) == 11);
  REQUIRE(rank.told.rank == 3);
  REQUIRE(rank.told.section == rank.section);
  REQUIRE(rank.told.limit_s == 10);
  REQUIRE(rank.watch.stalled_s(3) > 10);
}

TEST_CASE("steps have a minute at least, once pauses were seen", "[stall]") {
  Watched rank;
  for (int i = 0; i < 5; ++i) (void)rank.look(true);
  REQUIRE(rank.watch.limit_s(RankSection::step) == 60);
  REQUIRE(rank.stands_until_told(100) == 61);
}

TEST_CASE("a section whose actions take long has five times the longest", "[stall]") {
  Watched rank;
  for (int i = 0; i < 4; ++i) {
    for (int second = 0; second < 39; ++second) (void)rank.look(false);
    (void)rank.look(true);
  }
  REQUIRE(rank.watch.limit_s(RankSection::step) == 200);
  REQUIRE(rank.stands_until_told(300) == 201);
}

TEST_CASE("before three pauses were seen a step has what its plan says, at least a minute",
          "[stall]") {
  Watched rank;
  (void)rank.look(true);
  rank.watch.plan_step(0.2);
  REQUIRE(rank.stands_until_told(100) == 61);
  (void)rank.look(true);
  rank.watch.plan_step(9);
  REQUIRE(rank.stands_until_told(100) == 91);
  REQUIRE(rank.watch.limit_s(RankSection::evaluate) == 90);
  REQUIRE(rank.watch.limit_s(RankSection::checkpoint) == 1800);
}

TEST_CASE("a device may work for a planned step while the host, quick before, waits for it",
          "[stall]") {
  Watched rank;
  rank.watch.plan_step(9);
  for (int i = 0; i < 6; ++i) (void)rank.look(true);
  REQUIRE(rank.stands_until_told(100) == 91);
}

TEST_CASE("without a plan a step has five minutes before three pauses were seen", "[stall]") {
  Watched rank;
  (void)rank.look(true);
  (void)rank.look(true);
  REQUIRE(rank.stands_until_told(400) == 301);
}

TEST_CASE("start, data and checkpoints have half an hour, however quick they were", "[stall]") {
  using enum RankSection;
  Watched rank;
  rank.section = GENERATE(init, data, checkpoint, finish);
  for (int i = 0; i < 10; ++i) (void)rank.look(true);
  REQUIRE(rank.stands_until_told(2000) == 1801);
}

TEST_CASE("one very long pause does not put off detection for hours", "[stall]") {
  Watched rank;
  for (int i = 0; i < 4; ++i) (void)rank.look(true);
  for (int second = 0; second < 700; ++second) (void)rank.look(false);
  (void)rank.look(true);
  REQUIRE(rank.watch.limit_s(RankSection::step) == 1800);
}

TEST_CASE("time in which the agent itself did not run counts for nobody", "[stall]") {
  Watched rank(fixed(60));
  (void)rank.look(true);
  REQUIRE(rank.look(false, std::chrono::hours(8)).empty());
  REQUIRE(rank.watch.stalled_s(3) <= 2);
  REQUIRE(rank.stands_until_told(100) > 50);
}

TEST_CASE("a stall that lasts is told again, but not at every look", "[stall]") {
  Watched rank(fixed(20));
  (void)rank.look(true);
  REQUIRE(rank.stands_until_told(30) == 21);
  REQUIRE(rank.stands_until_told(30) == 10);
  (void)rank.look(true);
  REQUIRE(rank.stands_until_told(30) == 21);
}

TEST_CASE("no rank is hung when the limit is off", "[stall]") {
  Watched rank({.kind = HangLimit::Kind::off});
  (void)rank.look(true);
  REQUIRE(rank.stands_until_told(5000) == -1);
}

TEST_CASE("a rank that has recorded nothing yet may load its program for long", "[stall]") {
  Watched rank(fixed(5));
  REQUIRE(rank.stands_until_told(1000) == -1);
  REQUIRE(rank.stands_until_told(1000) > 0);
  REQUIRE(rank.told.limit_s == 1800);
}

TEST_CASE("each rank stalls for itself", "[stall]") {
  StallWatch watch(fixed(5));
  auto now = StallWatch::Clock::now();
  std::vector<Stall> stalls;
  for (int second = 0; second < 8 && stalls.empty(); ++second) {
    now += seconds(1);
    const std::vector<RankProgress> ranks = {{0, RankSection::step, second},
                                             {1, RankSection::step, 7}};
    stalls = watch.look(now, ranks);
  }
  REQUIRE(stalls.size() == 1);
  REQUIRE(stalls.front().rank == 1);
}

TEST_CASE("short limits are looked at often enough", "[stall]") {
  REQUIRE(StallWatch(fixed(0.4)).period() <= milliseconds(100));
  REQUIRE(StallWatch().period() == seconds(1));
}

}  // namespace dstrain::launcher
