#include "launcher/job/clock_offset.h"

#include "test/launcher/units.h"
#include "test/support/catch.h"

namespace dstrain::launcher {
namespace {

using test::kSecond;

TEST_CASE("the quickest answer of each ten seconds says how far a clock is", "[launcher]") {
  ClockOffset clock;
  CHECK(clock.to_ours(500) == 500);
  CHECK_FALSE(clock.add(100 * kSecond, 107 * kSecond + 40, 100 * kSecond + 100));
  CHECK(clock.to_ours(107 * kSecond) == 100 * kSecond + 10);
  CHECK(clock.to_ours(0) == 0);
  CHECK_FALSE(clock.add(101 * kSecond, 108 * kSecond + 11, 101 * kSecond + 20));
  CHECK_FALSE(clock.add(102 * kSecond, 109 * kSecond + 900, 102 * kSecond + 1000));

  const auto reading = clock.add(110 * kSecond, 118 * kSecond, 110 * kSecond + 3000);
  REQUIRE(reading);
  CHECK(reading->t_ns == 101 * kSecond + 10);
  CHECK(reading->offset_ns == 7 * kSecond + 1);
  CHECK(reading->bound_ns == 10);
  // The new window has only a slow answer so far.
  CHECK(clock.to_ours(118 * kSecond) == 111 * kSecond - 1);

  const auto rest = clock.take_rest();
  REQUIRE(rest);
  CHECK(rest->offset_ns == 8 * kSecond - 1500);
  CHECK(rest->bound_ns == 1500);
  CHECK_FALSE(clock.take_rest());
  CHECK(clock.to_ours(118 * kSecond) == 110 * kSecond + 1500);
}

TEST_CASE("an answer before its question says nothing", "[launcher]") {
  ClockOffset clock;
  CHECK_FALSE(clock.add(100 * kSecond, 100 * kSecond, 99 * kSecond));
  CHECK_FALSE(clock.take_rest());
}

}  // namespace
}  // namespace dstrain::launcher
