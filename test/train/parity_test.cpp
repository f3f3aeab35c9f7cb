#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/train/sessions.h"

namespace dstrain {
namespace {

constexpr int kParitySteps = 15;
constexpr int kFewSteps = 5;  ///< of most runs: what differs by more than roundoff does so at once

/// Losses of the first `steps` optimizer steps of the quickstart model, made narrow, under
/// `overrides` on `ranks` ranks, each a thread.
std::vector<double> losses(int ranks, const std::vector<std::string>& overrides,
                           int steps = kFewSteps) {
  std::vector<std::string> all = {"batch.global=48",
                                  "batch.micro=8",
                                  "model.width=64",
                                  "model.mlp_width=96",
                                  "optimizer.warmup_steps=10",
                                  "run.epochs=0",
                                  fmt::format("run.steps={}", kParitySteps)};
  all.insert(all.end(), overrides.begin(), overrides.end());
  const Recipe recipe = load_recipe("recipes/quickstart.yaml", all).recipe;
  std::vector<std::vector<double>> by_rank(static_cast<std::size_t>(ranks));
  test::with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        for (int step = 0; step < steps; ++step) {
          session.enqueue_step();
          by_rank[static_cast<std::size_t>(rank)].push_back(session.executor().take_outcome().loss);
        }
      });
  for (const auto& other : by_rank) REQUIRE(other == by_rank.front());
  return by_rank.front();
}

const std::vector<double>& reference() {
  static const std::vector<double> values = losses(1, {"parallel.zero.stage=0"}, kParitySteps);
  return values;
}

/// `found` may end before `expected`.
void check_equal(const std::vector<double>& found,
                 const std::vector<double>& expected = reference()) {
  REQUIRE(found.size() >= static_cast<std::size_t>(kFewSteps));
  REQUIRE(found.size() <= expected.size());
  for (std::size_t step = 0; step < found.size(); ++step) {
    CAPTURE(step, found[step], expected[step]);
    REQUIRE(std::abs(found[step] - expected[step]) <= test::kPromised * std::abs(expected[step]));
  }
}

}  // namespace

TEST_CASE("every strategy and rank count gives the loss curve of a single rank",
          "[train][parity]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  const int zero_stage = GENERATE(0, 1, 2, 3);
  CAPTURE(ranks, zero_stage);
  REQUIRE(reference().front() > 2.0);
  REQUIRE(reference().back() < reference().front());
  check_equal(losses(ranks, {fmt::format("parallel.zero.stage={}", zero_stage)},
                     ranks == 4 ? kParitySteps : kFewSteps));
}

TEST_CASE("sharding beside replication, recomputation and deep prefetch change nothing",
          "[train][parity]") {
  SECTION("two shards times two replicas") {
    check_equal(losses(
        4, {fmt::format("parallel.zero.stage={}", GENERATE(1, 2, 3)), "parallel.zero.shard=2"}));
  }
  SECTION("recomputation") {
    check_equal(losses(2, {"parallel.zero.stage=3", "memory.recompute=blocks"}));
  }
  SECTION("prefetch") {
    check_equal(losses(
        3, {"parallel.zero.stage=3", fmt::format("parallel.zero.prefetch={}", GENERATE(0, 3))}));
  }
  SECTION("a micro-batch that does not divide the global batch") {
    check_equal(losses(2, {"batch.micro=7"}));
  }
}

TEST_CASE("samples skip the same layers on any number of ranks and when computed again",
          "[train][parity]") {
  // Micro-batches of 6, which 1, 2 and 4 ranks share evenly: each has a seed of its own.
  const auto with_drops = [](int ranks, std::vector<std::string> more) {
    more.insert(more.end(), {"model.drop_path=0.4", "batch.micro=6"});
    return losses(ranks, more);
  };
  const auto alone = with_drops(1, {});
  REQUIRE(alone != losses(1, {"batch.micro=6"}));
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    check_equal(with_drops(ranks, {"parallel.zero.stage=3"}), alone);
  }
  check_equal(with_drops(2, {"parallel.zero.stage=2", "memory.recompute=blocks"}), alone);
}

TEST_CASE("every optimizer gives the loss curve of a single rank under every ZeRO stage",
          "[train][parity]") {
  // Lion steps by a sign, so that rounding is amplified: with a large lr runs soon part.
  const std::string keys =
      GENERATE(as<std::string>(), "optimizer.name=sgd optimizer.lr=0.2",
               "optimizer.name=sgd optimizer.nesterov=true optimizer.lr=0.1",
               "optimizer.name=rmsprop optimizer.lr=1e-4 optimizer.decay_vectors=false",
               "optimizer.name=rmsprop optimizer.rmsprop=tensorflow optimizer.lr=1e-3",
               "optimizer.name=lion optimizer.lr=2e-5", "optimizer.name=muon optimizer.lr=2e-3");
  CAPTURE(keys);
  const auto with = [&](int zero_stage) {
    std::vector<std::string> overrides = {fmt::format("parallel.zero.stage={}", zero_stage),
                                          "optimizer.warmup_steps=5"};
    for (std::size_t begin = 0; begin < keys.size();) {
      const std::size_t end = std::min(keys.find(' ', begin), keys.size());
      overrides.push_back(keys.substr(begin, end - begin));
      begin = end + 1;
    }
    return overrides;
  };
  const std::vector<double> alone = losses(1, with(0));
  REQUIRE(alone.back() != reference()[kFewSteps - 1]);  // of adamw
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    check_equal(losses(3, with(stage)), alone);
  }
}

}  // namespace dstrain
