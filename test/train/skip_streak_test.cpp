#include "engine/train/session/skip_streak.h"

#include "engine/kernels/optimizer/control.h"
#include "test/support/catch.h"

namespace dstrain {

TEST_CASE("skipped steps in a row are counted, a good one ends the row", "[train]") {
  SkipStreak streak;
  for (int i = 1; i <= 3; ++i) {
    streak.add(/*skipped=*/true, 1);
    REQUIRE(streak.length() == i);
  }
  streak.add(false, 1);
  REQUIRE(streak.length() == 0);
  streak.add(true, 1);
  REQUIRE(streak.length() == 1);
}

TEST_CASE("the search for a loss scale is not counted, and the least scale ends it", "[train]") {
  SkipStreak streak;
  double scale = 65536;
  streak.restart(scale);
  for (; scale > optimizer::kMinLossScale; scale /= 2) {
    streak.add(true, scale / 2);
    REQUIRE(streak.length() == 0);
  }
  for (int i = 1; i <= 5; ++i) {
    streak.add(true, scale);
    REQUIRE(streak.length() == i);
  }
}

TEST_CASE("steps that hysteresis takes up are part of the search", "[train]") {
  SkipStreak streak;
  streak.restart(1024);
  streak.add(true, 1024, 1);
  streak.add(true, 1024, 2);
  streak.add(true, 512, 2);
  REQUIRE(streak.length() == 0);
  streak.restart(1, 2);  // the least scale of a run that goes on
  streak.add(true, 1, 2);
  REQUIRE(streak.length() == 1);
}

TEST_CASE("after the scale has grown, one lower again is part of the search", "[train]") {
  SkipStreak streak;
  streak.restart(1024);
  streak.add(false, 2048);
  streak.add(true, 1024);
  REQUIRE(streak.length() == 0);
}

}  // namespace dstrain
