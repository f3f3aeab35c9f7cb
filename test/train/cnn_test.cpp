#include <fmt/format.h>

#include <cmath>

#include "engine/checkpoint/checkpoint.h"
#include "engine/store/store.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

// Convolutional models under every strategy: losses, weights and running statistics.

namespace dstrain {
namespace {

using test::check_near;
using test::small_run;
using test::Trace;

/// The global batch of 24 as micro-batches of `micro` samples.
std::vector<std::string> with(int micro, std::vector<std::string> more = {}) {
  more.push_back(fmt::format("batch.micro={}", micro));
  return more;
}

const Trace& cnn_reference() {
  static const Trace trace = small_run("cnn", 1, with(6, {"parallel.zero.stage=0"}));
  return trace;
}

bool is_statistic(const std::string& name) { return name.find(".running_") != std::string::npos; }

TEST_CASE("ranks that share the micro-batches of one rank have its losses, weights and statistics",
          "[train][cnn]") {
  const int ranks = GENERATE(1, 2, 4), stage = GENERATE(0, 1, 2, 3);
  CAPTURE(ranks, stage);
  REQUIRE(cnn_reference().start.at("stage1.norm.running_var") !=
          cnn_reference().weights.at("stage1.norm.running_var"));
  CHECK(cnn_reference().weights.at("stage1.norm.num_batches_tracked") ==
        std::vector<float>{test::kSmallSteps});
  check_near(small_run("cnn", ranks, with(6, {fmt::format("parallel.zero.stage={}", stage)})),
             cnn_reference());
}

TEST_CASE("recomputed blocks count no sample twice, and small groups change nothing",
          "[train][cnn]") {
  SECTION("recomputation") {
    check_near(small_run("cnn", 2, with(6, {"parallel.zero.stage=3", "memory.recompute=blocks"})),
               cnn_reference());
  }
  SECTION("groups of single blocks, without prefetch") {
    check_near(small_run("cnn", 2,
                         with(6, {"parallel.zero.stage=3", "parallel.bucket=0",
                                  "parallel.zero.prefetch=0"})),
               cnn_reference());
  }
  SECTION("groups of two blocks") {
    check_near(small_run("cnn", 2,
                         with(6, {"parallel.zero.stage=3", "parallel.bucket=0.1",
                                  "parallel.zero.prefetch=0"})),
               cnn_reference());
  }
  SECTION("groups of two blocks, two micro-batches at once") {
    const int stage = GENERATE(0, 2, 3);
    CAPTURE(stage);
    check_near(small_run("cnn", 2,
                         with(6, {fmt::format("parallel.zero.stage={}", stage),
                                  "parallel.bucket=0.1", "batch.concurrent=2"})),
               cnn_reference());
  }
  SECTION("two stages of a pipeline") {
    check_near(small_run("cnn", 4, with(6, {"parallel.pipeline=2"})), cnn_reference());
  }
}

TEST_CASE("a batch that ranks do not divide is cut as one rank cuts it", "[train][cnn]") {
  // 22 samples are 4 micro-batches of 5 or 6; the last of 6 rows has a filler.
  const std::vector<std::string> uneven = with(6, {"batch.global=22"});
  const Trace alone = small_run("cnn", 1, uneven);
  REQUIRE(alone.losses != cnn_reference().losses);
  check_near(small_run("cnn", GENERATE(2, 4), uneven), alone);
}

TEST_CASE("statistics over the ranks are those of one rank with all samples", "[train][cnn]") {
  const Trace alone = small_run("cnn", 1, with(12));
  REQUIRE(alone.losses != cnn_reference().losses);
  const int stage = GENERATE(0, 3);
  check_near(
      small_run("cnn", 2,
                with(6, {"batch_norm.over=ranks", fmt::format("parallel.zero.stage={}", stage)})),
      alone);
  check_near(small_run("cnn", 4, with(3, {"batch_norm.over=ranks", "memory.recompute=blocks"})),
             alone);
}

TEST_CASE("statistics are those of the batch, of the ranks, or stay", "[train][cnn]") {
  const Trace fixed = small_run("cnn", 2, with(6, {"batch_norm.over=running"}));
  const Trace frozen =
      small_run("cnn", 1, with(6, {R"(model.frozen=["stage1.*", "stage2.norm.*"])"}));
  for (const auto& [name, values] : cnn_reference().weights) {
    CAPTURE(name);
    const bool statistic = is_statistic(name);
    if (statistic) CHECK(fixed.weights.at(name) == fixed.start.at(name));
    const bool still = name.starts_with("stage1.") || name.starts_with("stage2.norm.");
    CHECK((frozen.weights.at(name) == frozen.start.at(name)) == still);
  }
}

TEST_CASE("a step that is skipped leaves the running statistics", "[train][cnn]") {
  // The first scale overflows fp16's gradients; it is halved until they fit.
  const Recipe recipe = test::small_recipe(
      "cnn",
      with(6, {"precision.compute=fp16", "precision.loss_scale.initial=1e12", "run.steps=60"}));
  test::with_sessions(
      2, [&](int) { return recipe; },
      [&](int, Session& session) {
        const auto start = session.gathered_weights();
        session.seek(0);
        session.enqueue_step();
        const StepOutcome outcome = session.executor().take_outcome();
        const auto after = session.gathered_weights();
        if (!outcome.skipped || after != start)
          throw std::runtime_error("the step was not skipped");
        for (int step = 0; step < 40 && session.executor().pending() == 0; ++step) {
          session.enqueue_step();
          if (!session.executor().take_outcome().skipped) break;
        }
        const auto applied = session.gathered_weights();
        for (const auto& [name, values] : start) {
          const bool changed = applied.at(name) != values;
          if (is_statistic(name) && !changed) throw std::runtime_error(name + " has not changed");
          for (const float value : applied.at(name)) {
            if (!std::isfinite(value)) throw std::runtime_error(name + " is not finite");
          }
        }
        if (applied.at("stage1.norm.num_batches_tracked") != std::vector<float>{1})
          throw std::runtime_error("wrong number of applied steps");
      });
}

TEST_CASE("a run goes on with its running statistics on other ranks", "[train][cnn]") {
  const auto recipe_of = [](int stage) {
    return test::small_recipe("cnn", with(6, {fmt::format("parallel.zero.stage={}", stage)}));
  };
  const test::TempDir folder;
  const auto store = make_memory_store();
  constexpr int kSaved = 2;  // steps
  test::with_sessions(
      2, [&](int) { return recipe_of(2); },
      [&](int rank, Session& session) {
        session.seek(0);
        for (int step = 0; step < kSaved; ++step) {
          session.enqueue_step();
          (void)session.executor().take_outcome();
        }
        const auto saver = make_saver(
            store, {.root = folder.path(), .rank = rank, .world_size = 2, .attempt = "1"});
        saver->start({.step = kSaved, .world_size = 2, .base = {}, .recipe = "model: {}\n"},
                     session.states().snapshot());
        const auto result = saver->wait();
        if (!result || !result->ok) throw std::runtime_error(result ? result->error : "no result");
      });
  const auto reader = CheckpointReader::open(folder / "step-00000002", /*verify=*/true);
  Trace found = cnn_reference();
  test::with_sessions(
      4, [&](int) { return recipe_of(3); },
      [&](int rank, Session& session) {
        session.states().restore(*reader);
        session.seek(kSaved);
        for (int step = kSaved; step < test::kSmallSteps; ++step) {
          session.enqueue_step();
          const StepOutcome outcome = session.executor().take_outcome();
          if (rank == 0) found.losses[static_cast<std::size_t>(step)] = outcome.loss;
        }
        auto weights = session.gathered_weights();
        if (rank == 0) found.weights = std::move(weights);
      });
  check_near(found, cnn_reference());
}

}  // namespace
}  // namespace dstrain
