#include "launcher/job/restart_budget.h"

#include "test/support/catch.h"

namespace dstrain::launcher {
namespace {

using enum RestartBudget::Verdict;

TEST_CASE("restarts are counted since the job last came further", "[launcher][restart]") {
  RestartBudget budget(1);
  for (int step = 0; step < 4; ++step) {
    CHECK(budget.decide({.step = step}) == again);
    CHECK(budget.num_restarts() == 1);
  }
  CHECK(budget.decide({.step = 3}) == used_up);
  CHECK(budget.decide({.step = 4}) == again);
}

TEST_CASE("three starts that fail alike and come no further end a job that has restarts left",
          "[launcher][restart]") {
  RestartBudget at_a_step(10);
  CHECK(at_a_step.decide({.step = 5, .host = "a"}) == again);
  CHECK(at_a_step.decide({.step = 5, .host = "b"}) == again);
  CHECK(at_a_step.decide({.step = 5, .host = "c"}) == stuck);
  CHECK(at_a_step.num_starts() == 3);
  RestartBudget on_a_host(10);
  CHECK(on_a_host.decide({.step = 5, .host = "a"}) == again);
  CHECK(on_a_host.decide({.step = 3, .host = "a"}) == again);
  CHECK(on_a_host.decide({.step = 4, .host = "a"}) == stuck);
  CHECK(on_a_host.best_step() == 5);
}

TEST_CASE("hosts that are lost one after the other spend restarts, and no more",
          "[launcher][restart]") {
  RestartBudget budget(4);
  int step = 9;
  for (const char* host : {"a", "b", "c", "d"})
    CHECK(budget.decide({.step = step--, .kind = FailureKind::host, .host = host}) == again);
  CHECK(budget.decide({.step = 2, .kind = FailureKind::host, .host = "e"}) == used_up);
}

TEST_CASE("a restart with a spare spends none", "[launcher][restart]") {
  RestartBudget budget(1);
  for (const char* host : {"a", "b", "c"}) {
    CHECK(budget.decide({.step = 3, .kind = FailureKind::host, .host = host}) == again);
    budget.spend_spare();
  }
  CHECK(budget.decide({.step = 3, .host = "d"}) == again);
  CHECK(budget.decide({.step = 2, .host = "e"}) == used_up);
}

TEST_CASE("without restarts, or where none would help, a job ends", "[launcher][restart]") {
  CHECK(RestartBudget(0).decide({.step = 5}) == unasked);
  CHECK(RestartBudget(3).decide({.step = 5, .curable = false}) == unasked);
}

}  // namespace
}  // namespace dstrain::launcher
