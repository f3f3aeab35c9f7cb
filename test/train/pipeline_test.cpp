#include <fmt/format.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "recipes/schema/load.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/train/sessions.h"

using namespace dstrain;

namespace {

constexpr int kSteps = 3;

Recipe small_recipe(const std::string& model, const std::vector<std::string>& overrides) {
  const bool bloom = model.starts_with("bloom"), vit = model == "vit";
  std::vector<std::string> all = {fmt::format("run.steps={}", kSteps), "run.epochs=0",
                                  "batch.global=24", "batch.micro=2", "precision.compute=fp32",
                                  // The norm adds up stages in another order, and clipping uses it.
                                  "optimizer.clip_norm=0"};
  if (!vit) {
    all.insert(all.end(),
               {"model.name=" + model, "model.width=32", "model.layers=4", "model.heads=4",
                "model.vocab_size=97", "data.samples=64", "data.sequence=16", "optimizer.lr=0.003",
                "optimizer.no_decay=[\"*norm*\", \"*.bias\"]"});
    if (!bloom) all.insert(all.end(), {"model.kv_heads=2", "model.mlp_width=64"});
  }
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(vit     ? "recipes/quickstart.yaml"
                     : bloom ? "recipes/bloom/bloom-560m_random.yaml"
                             : "recipes/qwen/qwen2.5-3b_random.yaml",
                     all)
      .recipe;
}

/// What rank 0 saw of a run; all ranks must see the same losses.
struct Trace {
  std::vector<double> losses, norms;
  EvaluationTotals evaluation;
  std::map<std::string, std::vector<float>> weights;
};

Trace run(const std::string& model, int ranks, const std::vector<std::string>& overrides) {
  const Recipe recipe = small_recipe(model, overrides);
  std::vector<Trace> by_rank(static_cast<std::size_t>(ranks));
  test::with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        Trace& own = by_rank[static_cast<std::size_t>(rank)];
        session.seek(0);
        for (int step = 0; step < kSteps; ++step) {
          session.enqueue_step();
          const StepOutcome outcome = session.executor().take_outcome();
          own.losses.push_back(outcome.loss);
          own.norms.push_back(outcome.gradient_norm);
        }
        own.weights = session.gathered_weights();
      });
  for (const Trace& other : by_rank) {
    REQUIRE(other.losses == by_rank.front().losses);
    REQUIRE(other.norms == by_rank.front().norms);
  }
  return std::move(by_rank.front());
}

void check_near(const Trace& found, const Trace& expected) {
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    CAPTURE(step);
    REQUIRE(std::abs(found.losses[step] - expected.losses[step]) <=
            test::kPromised * std::abs(expected.losses[step]));
    REQUIRE(std::abs(found.norms[step] - expected.norms[step]) <=
            1e-4 * std::abs(expected.norms[step]));
  }
  REQUIRE(found.weights.size() == expected.weights.size());
  for (const auto& [name, tensor] : expected.weights) {
    CAPTURE(name);
    const std::vector<float>& other = found.weights.at(name);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      difference += std::pow(double{other[i]} - tensor[i], 2);
      size += std::pow(double{tensor[i]}, 2);
    }
    REQUIRE(std::sqrt(difference) <= 1e-4 * std::sqrt(size) + 1e-6);
  }
}

}  // namespace

TEST_CASE("a pipeline gives one rank's losses, norms and weights to the last bit",
          "[train][pipeline]") {
  // An untied head: a tied one sums its gradient in another order.
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-7b", "vit");
  const Trace expected = run(model, 1, {});
  const int ranks = GENERATE(2, 3, 4);
  CAPTURE(model, ranks);
  const Trace found = run(model, ranks, {fmt::format("parallel.pipeline={}", ranks)});
  REQUIRE(found.losses == expected.losses);
  CHECK(found.weights == expected.weights);
  const Trace again =
      run(model, ranks, {fmt::format("parallel.pipeline={}", ranks), "memory.recompute=blocks"});
  CHECK(again.weights == expected.weights);
}

TEST_CASE("a pipeline of data ranks gives one rank's steps under every ZeRO stage",
          "[train][pipeline]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "bloom-560m");  // tied
  const Trace expected = run(model, 1, {});
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(model, stage);
  check_near(run(model, 4, {"parallel.pipeline=2", fmt::format("parallel.zero.stage={}", stage)}),
             expected);
  check_near(run(model, 2,
                 {"parallel.pipeline=2", fmt::format("parallel.zero.stage={}", stage),
                  "memory.recompute=blocks"}),
             expected);
}

TEST_CASE(
    "every schedule and cut of a pipeline gives one rank's losses and weights to the last bit",
    "[train][pipeline]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-7b", "vit");
  const Trace expected = run(model, 1, {});
  for (const std::string schedule :
       {"gpipe", "1f1b", "interleaved", "zero_bubble", "dual_pipe_v"}) {
    CAPTURE(model, schedule);
    const Trace found =
        run(model, 2, {"parallel.pipeline=2", "parallel.stages.schedule=" + schedule});
    REQUIRE(found.losses == expected.losses);
    CHECK(found.weights == expected.weights);
  }
  const Trace tight =
      run(model, 2,
          {"parallel.pipeline=2", "parallel.stages.schedule=zero_bubble",
           "parallel.stages.chunks=3", "parallel.stages.in_flight=2", "memory.recompute=blocks"});
  CHECK(tight.weights == expected.weights);
  if (model == "vit") return;
  const Trace by_hand = run(model, 3,
                            {"parallel.pipeline=3", "parallel.stages.schedule=dual_pipe_v",
                             "parallel.stages.layers=[0, 1, 1, 1, 1, 0]"});
  CHECK(by_hand.weights == expected.weights);
}

TEST_CASE("a tied table in both chunks of one rank gives one rank's steps under every ZeRO stage",
          "[train][pipeline]") {
  const Trace expected = run("qwen2.5-0.5b", 1, {});
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    check_near(run("qwen2.5-0.5b", 4,
                   {"parallel.pipeline=2", "parallel.stages.schedule=dual_pipe_v",
                    fmt::format("parallel.zero.stage={}", stage)}),
               expected);
  }
}
