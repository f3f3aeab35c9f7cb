#include "engine/checkpoint/save_clock.h"

#include "test/support/catch.h"

using namespace dstrain;
using std::chrono::seconds;

namespace {

constexpr Interval kAuto{.kind = Interval::Kind::automatic};
const SaveClock::Time kBegin{seconds(1000)};

}  // namespace

TEST_CASE("a save by the clock is due an interval after the one before", "[checkpoint][clock]") {
  SaveClock clock({.kind = Interval::Kind::time, .seconds = 600}, 8, kBegin);
  CHECK(clock.interval_s() == 600);
  CHECK(clock.reason().empty());
  CHECK_FALSE(clock.is_due(kBegin + seconds(599)));
  CHECK(clock.is_due(kBegin + seconds(600)));
  clock.restart(kBegin + seconds(650));
  CHECK_FALSE(clock.is_due(kBegin + seconds(1249)));
  CHECK(clock.is_due(kBegin + seconds(1250)));
  clock.add_stall(50);
  CHECK(clock.interval_s() == 600);  // as the recipe says
}

TEST_CASE("auto saves the oftener the more ranks stop and the cheaper a save is",
          "[checkpoint][clock]") {
  // The design's arithmetic: 8,192 ranks stop every 6.2 h, a save of 1 s: 211 s.
  SaveClock many(kAuto, 8192, kBegin);
  CHECK(many.interval_s() == Approx(211).epsilon(0.01));
  many.add_stall(4);
  CHECK(many.interval_s() == Approx(422).epsilon(0.01));
  many.add_stall(2);  // the longest counts
  CHECK(many.interval_s() == Approx(422).epsilon(0.01));
  CHECK(SaveClock(kAuto, 8, kBegin).interval_s() == 3600);
  CHECK(SaveClock(kAuto, 1'000'000, kBegin).interval_s() == 60);
  CHECK_THAT(many.reason(), Catch::Contains("a job of 8192 ranks stops about every 6"));
}

TEST_CASE("steps, epochs and never are not the clock's business", "[checkpoint][clock]") {
  for (const Interval::Kind kind :
       {Interval::Kind::never, Interval::Kind::epoch, Interval::Kind::steps}) {
    const SaveClock clock({.kind = kind, .steps = 5}, 8, kBegin);
    CHECK_FALSE(clock.is_due(kBegin + std::chrono::hours(1000)));
  }
}
