#include "engine/train/session.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "recipes/schema/load.h"
#include "test/support/catch.h"
#include "test/train/sessions.h"

using namespace dstrain;
using test::with_sessions;

namespace {

Recipe small_recipe(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"batch.global=48", "batch.micro=8", "run.steps=4",
                                       "run.epochs=0", "model.layers=2"});
  return load_recipe("recipes/quickstart.yaml", overrides).recipe;
}

EvaluationTotals evaluated(int ranks, int zero_stage) {
  EvaluationTotals totals;
  const Recipe recipe = small_recipe({fmt::format("parallel.zero.stage={}", zero_stage)});
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        for (int step = 0; step < 3; ++step) {
          session.enqueue_step(/*stop=*/false);
          (void)session.executor().take_outcome();
        }
        const EvaluationTotals found = session.evaluate();
        if (rank == 0) totals = found;
      });
  return totals;
}

}  // namespace

TEST_CASE("evaluation counts every sample once and is the same under every strategy", "[train]") {
  const EvaluationTotals expected = evaluated(1, 0);
  REQUIRE(expected.targets == 360);
  const int ranks = GENERATE(2, 3);
  const int zero_stage = GENERATE(0, 1, 2, 3);
  CAPTURE(ranks, zero_stage);
  const EvaluationTotals found = evaluated(ranks, zero_stage);
  REQUIRE(found.targets == 360);
  REQUIRE(found.loss == Approx(expected.loss).epsilon(1e-5));
  REQUIRE(found.top1 == Approx(expected.top1).margin(1.0 / 360));
  REQUIRE(found.top5 == Approx(expected.top5).margin(1.0 / 360));
}

TEST_CASE("ranks with different recipes are told so before the first step", "[train]") {
  const std::string difference =
      GENERATE("parallel.zero.stage=1", "optimizer.lr=0.5", "run.steps=5", "run.seed=7");
  CAPTURE(difference);
  try {
    with_sessions(
        3, [&](int rank) { return small_recipe({rank == 1 ? difference : "run.steps=4"}); },
        [](int, Session&) {});
    FAIL("no rank noticed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()).find("on ranks 0 2") != std::string::npos);
    CHECK(std::string(error.what()).find("on ranks 1") != std::string::npos);
  }
}
