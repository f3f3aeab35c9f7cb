#include "engine/train/session/session.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <thread>

#include "engine/base/error.h"
#include "engine/recipe/load.h"
#include "test/support/catch.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

namespace dstrain {
namespace {

using test::with_sessions;

Recipe session_recipe(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"batch.global=48", "batch.micro=8", "run.steps=4",
                                       "run.epochs=0", "model.layers=2"});
  return load_recipe("recipes/quickstart.yaml", overrides).recipe;
}

EvaluationTotals evaluated(int ranks, int zero_stage) {
  EvaluationTotals totals;
  const Recipe recipe = session_recipe({fmt::format("parallel.zero.stage={}", zero_stage)});
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        for (int step = 0; step < 3; ++step) {
          session.enqueue_step();
          (void)session.executor().take_outcome();
        }
        const EvaluationTotals found = session.evaluate();
        if (rank == 0) totals = found;
      });
  return totals;
}

/// Each sample stands once in the counts of classes, and those that are right on the diagonal.
void check_confusion(const EvaluationTotals& totals, std::int64_t classes) {
  const at::Tensor& counts = totals.confusion;
  REQUIRE(counts.defined());
  REQUIRE(counts.sizes() == at::IntArrayRef({classes, classes}));
  CHECK(static_cast<double>(counts.sum().item<std::int64_t>()) == totals.targets);
  CHECK(static_cast<double>(counts.trace().item<std::int64_t>()) / totals.targets == totals.top1);
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
  check_confusion(found, 10);
  CHECK((found.confusion.sum(1) == expected.confusion.sum(1)).all().item<bool>());
}

TEST_CASE("each rank's predictions are counted once, whatever the ranks share", "[train]") {
  const std::string cut = GENERATE("parallel.tensor=2", "parallel.pipeline=2");
  const std::string model = GENERATE("vit", "cnn");
  if (model == "cnn" && cut == "parallel.tensor=2") return;
  CAPTURE(cut, model);
  const std::vector<std::string> all = {"run.evaluate=3", "batch.micro=4", "batch.global=24"};
  const EvaluationTotals expected = test::small_run(model, 1, all).evaluation;
  check_confusion(expected, expected.confusion.size(0));
  const EvaluationTotals found = test::small_run(model, 4, test::joined(all, {cut})).evaluation;
  check_confusion(found, expected.confusion.size(0));
  CHECK((found.confusion.sum(1) == expected.confusion.sum(1)).all().item<bool>());
}

TEST_CASE("of classes with equal scores the first one is the prediction", "[train]") {
  // All logits are 0.
  const std::vector<std::string> all = {"run.evaluate=3", "batch.micro=4", "batch.global=24"};
  with_sessions(
      1, [&](int) { return test::small_recipe("vit", all); },
      [&](int, Session& session) {
        session.seek(0);
        const at::NoGradGuard no_gradients;
        for (int group = 0; group < static_cast<int>(session.states().num_groups()); ++group)
          session.states().own_parameters(group).zero_();
        const EvaluationTotals totals = session.evaluate();
        check_confusion(totals, session.model().classes);
        CHECK(totals.confusion.select(1, 0).sum().item<std::int64_t>() ==
              static_cast<std::int64_t>(totals.targets));
      });
}

TEST_CASE("the state that a rank holds is what the program's buffers say", "[train]") {
  const int zero_stage = GENERATE(0, 1, 2, 3);
  const std::string optimizer = GENERATE("adamw", "sgd");
  CAPTURE(zero_stage, optimizer);
  const Recipe recipe = session_recipe({fmt::format("parallel.zero.stage={}", zero_stage),
                                        "optimizer.name=" + optimizer, "precision.compute=bf16"});
  with_sessions(
      2, [&](int) { return recipe; },
      [&](int, Session& session) {
        const Program& program = session.strategy().training;
        StateStore& states = session.states();
        const auto bytes = [](const at::Tensor& tensor) {
          return static_cast<Bytes>(tensor.nbytes());
        };
        for (const Buffer& buffer : program.buffers) {
          const int group = buffer.owner;
          const at::Tensor resident =
              buffer.role == BufferRole::parameters ? states.resident_parameters(group)
              : buffer.role == BufferRole::gradient ? states.resident_gradient(group)
                                                    : at::Tensor();
          Bytes held = -1;
          if (resident.defined()) {
            held = bytes(resident);
          } else if (buffer.role == BufferRole::parameters) {
            held = bytes(states.own_parameters(group));
          } else if (buffer.role == BufferRole::gradient) {
            held = bytes(states.own_gradient(group));
          } else if (buffer.role == BufferRole::master) {
            held = bytes(states.master(group));
          } else if (buffer.role == BufferRole::moments) {
            held = bytes(states.moment(group, buffer.moment, states.own_range(group)));
          }
          if (held >= 0) REQUIRE(held == buffer.bytes());
        }
      });
}

TEST_CASE("the time of a step is that of its work, not of what the host does before or after",
          "[train]") {
  using Clock = std::chrono::steady_clock;
  const Recipe recipe = session_recipe({});
  with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        for (int step = 0; step < 3; ++step) {
          const auto begin = Clock::now();
          session.enqueue_step();
          const double enqueued_s = std::chrono::duration<double>(Clock::now() - begin).count();
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          const double step_s = session.executor().take_outcome().step_s;
          CHECK(step_s > 0);
          CHECK(step_s <= enqueued_s);
          (void)session.evaluate();
        }
      });
}

TEST_CASE("evaluation of a large split is as exact as its samples' losses", "[train]") {
  const auto of = [](int ranks, int micro) {
    const Recipe recipe = session_recipe(
        {"data.name=random", "data.samples=100000", "data.augment=[]", "model.layers=1",
         "model.width=16", "model.heads=2", "model.mlp_width=16", "model.channels=3",
         "batch.global=400", fmt::format("batch.micro={}", micro)});
    EvaluationTotals totals;
    with_sessions(
        ranks, [&](int) { return recipe; },
        [&](int rank, Session& session) {
          const EvaluationTotals found = session.evaluate();
          if (rank == 0) totals = found;
        });
    return totals;
  };
  // Sums of two samples each, added up in double, are the losses themselves but for 1e-8.
  const EvaluationTotals expected = of(1, 2);
  REQUIRE(expected.targets == 10000);
  for (const int ranks : {1, 2}) {
    const EvaluationTotals found = of(ranks, 100);
    CAPTURE(ranks, found.loss - expected.loss);
    REQUIRE(found.targets == 10000);
    REQUIRE(std::abs(found.loss - expected.loss) < 1e-7 * expected.loss);
    REQUIRE(found.top1 == expected.top1);
    REQUIRE(found.top5 == expected.top5);
  }
}

TEST_CASE("weights that are not finite: no accuracy, in steps as in evaluation", "[train]") {
  const int ranks = GENERATE(1, 2);
  const double value = GENERATE(static_cast<double>(NAN), HUGE_VAL);
  CAPTURE(ranks, value);
  const Recipe recipe = session_recipe({"parallel.zero.stage=0"});
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int, Session& session) {
        for (int g = 0; g < static_cast<int>(session.states().num_groups()); ++g)
          session.states().own_parameters(g).fill_(value);
        session.seek(0);
        session.enqueue_step();
        const StepOutcome outcome = session.executor().take_outcome();
        const EvaluationTotals found = session.evaluate();
        const auto fine = outcome.skipped && !std::isfinite(outcome.loss) &&
                          std::isnan(outcome.top1) && std::isnan(outcome.top5) &&
                          outcome.targets == 48 && !std::isfinite(found.loss) &&
                          std::isnan(found.top1) && std::isnan(found.top5) && found.targets == 360;
        if (!fine) throw std::runtime_error("something was counted");
      });
}

TEST_CASE("ranks with different recipes are told so before the first step", "[train]") {
  const std::string difference =
      GENERATE("parallel.zero.stage=1", "optimizer.lr=0.5", "run.steps=5", "run.seed=7");
  CAPTURE(difference);
  try {
    with_sessions(
        3, [&](int rank) { return session_recipe({rank == 1 ? difference : "run.steps=4"}); },
        [](int, Session&) {});
    FAIL("no rank noticed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(std::string(error.what()).find("on ranks 0 2") != std::string::npos);
    CHECK(std::string(error.what()).find("on ranks 1") != std::string::npos);
  }
}

namespace {

/// What rank 0 says of the step after `spoil` has worked on the ranks' weights; all ranks must say
/// the same.
std::string explained(int ranks, const std::vector<std::string>& overrides,
                      const std::function<void(int rank, Session&)>& spoil) {
  const Recipe recipe = session_recipe(overrides);
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        session.enqueue_step();
        REQUIRE_FALSE(session.executor().take_outcome().skipped);
        spoil(rank, session);
        session.enqueue_step();
        const StepOutcome outcome = session.executor().take_outcome();
        REQUIRE(outcome.skipped);
        const Session::NonFinite found = session.explain_non_finite(outcome);
        const std::string named = fmt::format(" on rank {} ", found.rank);
        CHECK((found.text.find(named) != std::string::npos) == (found.rank >= 0));
        texts[static_cast<std::size_t>(rank)] = found.text;
      });
  for (const std::string& other : texts) CHECK(other == texts.front());
  return texts.front();
}

int first_group(Session& session, const std::string& block) {
  const auto& blocks = session.cost().blocks;
  const auto found =
      std::ranges::find_if(blocks, [&](const BlockCost& b) { return b.name.ends_with(block); });
  REQUIRE(found != blocks.end());
  return found->groups.front();
}

at::Tensor own_weights(Session& session, const std::string& block) {
  return session.states().own_parameters(first_group(session, block));
}

bool has(const std::string& text, const std::string& part) {
  CAPTURE(text, part);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a step that is not finite names the rank and the first weights or block that are not",
          "[train]") {
  const int stage = GENERATE(0, 1, 3);
  const std::vector<std::string> recipe = {fmt::format("parallel.zero.stage={}", stage),
                                           "precision.compute=fp32"};
  CAPTURE(stage);
  SECTION("weights") {
    const std::string text = explained(2, recipe, [](int rank, Session& session) {
      if (rank == 1) own_weights(session, "layer.1")[0] = INFINITY;
    });
    CAPTURE(text);
    CHECK(has(text, " at step 2 on rank 1 ("));
    CHECK(has(text, "layer.1 are not finite already, first in "));
  }
  SECTION("a block whose output overflows, though all its weights are finite") {
    const std::string text = explained(
        2, recipe, [](int, Session& session) { own_weights(session, "layer.1").fill_(3e38F); });
    CAPTURE(text);
    CHECK(has(text, "non-finite loss at step 2 on rank 0 ("));
    CHECK(has(text, "first non-finite values in "));
    CHECK(has(text, "layer.1, micro-batch 0; its inputs were finite up to "));
  }
}

TEST_CASE("a block that fails on one rank alone is blamed on that rank", "[train]") {
  const std::string text =
      explained(2, {"parallel.zero.stage=0", "precision.compute=fp32"}, [](int rank, Session& s) {
        if (rank == 1) own_weights(s, "layer.0").fill_(3e38F);
      });
  CAPTURE(text);
  CHECK(has(text, "non-finite loss at step 2 on rank 1 ("));
  CHECK(has(text, "layer.0, micro-batch 0; its inputs were finite up to "));
}

TEST_CASE("what is not finite in the backward pass alone is named, too", "[train]") {
  SECTION("a norm whose squares overflow") {
    const std::string text =
        explained(2, {"parallel.zero.stage=3", "precision.compute=fp32"},
                  [](int, Session& s) { own_weights(s, s.cost().blocks.back().name).mul_(1e14F); });
    CAPTURE(text);
    CHECK(has(text, "non-finite gradient at step 2 ("));
    CHECK(has(text, "the gradients are too large for their norm"));
  }
  SECTION("gradients of two blocks: backward comes to the later one first") {
    const Recipe recipe = session_recipe({"parallel.zero.stage=2"});
    with_sessions(
        2, [&](int) { return recipe; },
        [&](int rank, Session& session) {
          session.seek(0);
          session.enqueue_step();
          StepOutcome outcome = session.executor().take_outcome();
          REQUIRE_FALSE(outcome.skipped);
          for (const char* block : {"layer.0", "layer.1"}) {
            const int group = first_group(session, block);
            if (rank == 1) session.states().own_gradient(group)[0] = NAN;
          }
          outcome.gradient_norm = NAN;
          const std::string text = session.explain_non_finite(outcome).text;
          CAPTURE(text);
          CHECK(has(text, "non-finite gradient at step 1 ("));
          CHECK(has(text, "layer.1"));
          CHECK_FALSE(has(text, "layer.0"));
          // The run could go on where it was.
          CHECK(session.next_step() == 1);
        });
  }
}

TEST_CASE("recomputation of some blocks, chosen by the plan, changes nothing", "[train]") {
  struct Trained {
    RecomputeChoice choice;
    std::vector<double> losses;
  };
  const auto recipe_of = [](Bytes limit) {
    // A number of GiB with all the digits of a byte.
    return session_recipe(
        {"parallel.zero.stage=3", "model.layers=4", "memory.recompute=auto",
         fmt::format("memory.limit={:.12f}", std::ldexp(static_cast<double>(limit), -30))});
  };
  Bytes min = 0;  // with all blocks recomputed; ranks refuse a lower limit
  const auto trained = [&](Bytes limit) {
    const Recipe recipe = recipe_of(limit);
    Trained result;
    with_sessions(
        2, [&](int) { return recipe; },
        [&](int rank, Session& session) {
          session.seek(0);
          for (int step = 0; step < 3; ++step) {
            session.enqueue_step();
            const double loss = session.executor().take_outcome().loss;
            if (rank == 0) result.losses.push_back(loss);
          }
          if (rank != 0) return;
          result.choice = session.strategy().recompute.value();
          Machine machine = built_in_machine("");  // as of a rank whose device has no name
          machine.ranks_per_node = 2;
          const Strategy lowest =
              make_strategy(recipe_of(Bytes{1} << 20), session.cost(), 2, machine, rank);
          min = lowest.recompute.value().needed;
        });
    return result;
  };
  const auto count = [](const Trained& t) { return std::ranges::count(t.choice.blocks, true); };
  const Trained none = trained(Bytes{1} << 40), all = trained(min);
  CHECK(count(none) == 0);
  CHECK(count(all) >= 4);  // of five: the last one takes nothing from the peak
  CHECK_THROWS_WITH(trained(min - 1), Catch::Contains("memory.limit is"));
  const Trained some = trained((none.choice.needed + all.choice.needed) / 2);
  CHECK(count(some) > 0);
  CHECK(count(some) < count(all));
  CHECK(some.losses == none.losses);
  CHECK(all.losses == none.losses);
}

}  // namespace dstrain
