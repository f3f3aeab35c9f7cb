#include "launcher/job/restart_budget.h"

#include "test/support/catch.h"

using dstrain::launcher::RestartBudget;
using enum RestartBudget::Verdict;

TEST_CASE("restarts are counted since the job last came further", "[launcher][restart]") {
  RestartBudget budget(1);
  for (int step = 0; step < 4; ++step) {
    CHECK(budget.decide(step, true) == again);
    CHECK(budget.num_restarts() == 1);
  }
  CHECK(budget.decide(3, true) == used_up);
  CHECK(budget.decide(4, true) == again);
}

TEST_CASE("three starts that come no further end a job that has restarts left",
          "[launcher][restart]") {
  RestartBudget budget(10);
  CHECK(budget.decide(5, true) == again);
  CHECK(budget.decide(5, true) == again);
  CHECK(budget.decide(4, true) == stuck);
  CHECK(budget.num_starts() == 3);
  CHECK(budget.best_step() == 5);
}

TEST_CASE("without restarts, or where none would help, a job ends", "[launcher][restart]") {
  CHECK(RestartBudget(0).decide(5, true) == unasked);
  CHECK(RestartBudget(3).decide(5, false) == unasked);
}
