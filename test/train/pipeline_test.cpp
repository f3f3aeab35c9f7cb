#include <fmt/format.h>

#include <map>
#include <string>

#include "test/support/catch.h"
#include "test/train/small_runs.h"

namespace dstrain {
using namespace test;

namespace {

const Trace& of_one_rank(const std::string& model) {
  static std::map<std::string, Trace> known;
  if (!known.contains(model)) known[model] = small_run(model, 1, {});
  return known.at(model);
}

}  // namespace

TEST_CASE("a pipeline gives one rank's losses, norms and weights to the last bit",
          "[train][pipeline]") {
  // An untied head: a tied one sums its gradient in another order.
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-7b", "vit");
  const Trace& expected = of_one_rank(model);
  const int ranks = GENERATE(2, 3, 4);
  CAPTURE(model, ranks);
  const Trace found = small_run(model, ranks, {fmt::format("parallel.pipeline={}", ranks)});
  REQUIRE(found.losses == expected.losses);
  CHECK(found.weights == expected.weights);
  const Trace again = small_run(
      model, ranks, {fmt::format("parallel.pipeline={}", ranks), "memory.recompute=blocks"});
  CHECK(again.weights == expected.weights);
}

TEST_CASE("a pipeline of data ranks gives one rank's steps under every ZeRO stage",
          "[train][pipeline]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "bloom-560m", "gpt2",
                                     "gemma-3-270m");  // tied
  const Trace& expected = of_one_rank(model);
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(model, stage);
  check_near(
      small_run(model, 4, {"parallel.pipeline=2", fmt::format("parallel.zero.stage={}", stage)}),
      expected);
  check_near(small_run(model, 2,
                       {"parallel.pipeline=2", fmt::format("parallel.zero.stage={}", stage),
                        "memory.recompute=blocks"}),
             expected);
}

TEST_CASE(
    "every schedule and cut of a pipeline gives one rank's losses and weights to the last bit",
    "[train][pipeline]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-7b", "vit");
  const Trace& expected = of_one_rank(model);
  for (const std::string schedule :
       {"gpipe", "1f1b", "interleaved", "zero_bubble", "dual_pipe_v"}) {
    CAPTURE(model, schedule);
    const Trace found =
        small_run(model, 2, {"parallel.pipeline=2", "parallel.stages.schedule=" + schedule});
    REQUIRE(found.losses == expected.losses);
    CHECK(found.weights == expected.weights);
  }
  const Trace tight = small_run(
      model, 2,
      {"parallel.pipeline=2", "parallel.stages.schedule=zero_bubble", "parallel.stages.chunks=3",
       "parallel.stages.in_flight=2", "memory.recompute=blocks"});
  CHECK(tight.weights == expected.weights);
  if (model == "vit") return;
  const Trace by_hand = small_run(model, 3,
                                  {"parallel.pipeline=3", "parallel.stages.schedule=dual_pipe_v",
                                   "parallel.stages.layers=[0, 1, 1, 1, 1, 0]"});
  CHECK(by_hand.weights == expected.weights);
}

TEST_CASE("a rehearsal of the first step changes no bit of what follows", "[train][pipeline]") {
  const std::string settings =
      GENERATE(as<std::string>(), "parallel.stages.schedule=1f1b", "parallel.stages.schedule=gpipe",
               "parallel.stages.schedule=interleaved", "parallel.stages.schedule=zero_bubble",
               "parallel.stages.schedule=dual_pipe_v", "parallel.zero.stage=1",
               "parallel.zero.stage=2", "parallel.zero.stage=3", "memory.recompute=blocks",
               "memory.offload.optimizer=pinned", "parallel.tensor=2");
  const int ranks = settings.starts_with("parallel.stages") ? 2 : 4;
  CAPTURE(settings);
  const std::vector<std::string> overrides = {"parallel.pipeline=2", settings,
                                              "run.evaluate=epoch"};
  const Trace expected = small_run("qwen2.5-0.5b", ranks, overrides),
              found = small_run("qwen2.5-0.5b", ranks, overrides, /*rehearse=*/true);
  CHECK(found.losses == expected.losses);
  CHECK(found.norms == expected.norms);
  CHECK(found.weights == expected.weights);
  CHECK(found.evaluation.targets > 0);
  CHECK(found.evaluation.loss == expected.evaluation.loss);
}

TEST_CASE("a tied table in both chunks of one rank gives one rank's steps under every ZeRO stage",
          "[train][pipeline]") {
  const Trace& expected = of_one_rank("qwen2.5-0.5b");
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    check_near(small_run("qwen2.5-0.5b", 4,
                         {"parallel.pipeline=2", "parallel.stages.schedule=dual_pipe_v",
                          "batch.micro=2", fmt::format("parallel.zero.stage={}", stage)}),
               expected);
  }
}

}  // namespace dstrain
