#include "engine/device/scheduling.h"

#include <sched.h>

#include <future>
#include <thread>

#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("all threads of a process become those of a batch job, and so do later ones",
          "[device]") {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;  // as the caller chose
  std::promise<void> changed;
  auto earlier = std::async(std::launch::async, [&] {
    changed.get_future().wait();
    return ::sched_getscheduler(0);
  });
  schedule_as_batch();
  changed.set_value();
  CHECK(earlier.get() == SCHED_BATCH);
  CHECK(::sched_getscheduler(0) == SCHED_BATCH);
  CHECK(std::async(std::launch::async, [] { return ::sched_getscheduler(0); }).get() ==
        SCHED_BATCH);
  schedule_as_batch();
  CHECK(::sched_getscheduler(0) == SCHED_BATCH);
}

}  // namespace
}  // namespace dstrain
