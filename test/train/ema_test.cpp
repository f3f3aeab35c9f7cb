#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/train/schedule.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/train/sessions.h"
#include "test/train/small_rank.h"
#include "test/train/small_runs.h"

// The average of the weights over the steps.

namespace dstrain {
namespace {

using Weights = std::map<std::string, std::vector<float>>;

/// Of a session of one rank.
Weights averages(Session& session) {
  session.executor().finish_updates();
  const CheckpointPart part = session.states().snapshot();
  const std::string prefix = average_name("");
  Weights found;
  for (std::size_t i = 0; i < part.pieces.size(); ++i) {
    const Piece& box = part.pieces[i];
    if (!box.name.starts_with(prefix)) continue;
    std::vector<float> values(static_cast<std::size_t>(box.numel()));
    part.reads[i]({0, box.numel()}, values);
    std::vector<float>& whole = found[box.name.substr(prefix.size())];
    whole.insert(whole.end(), values.begin(), values.end());
  }
  return found;
}

std::vector<std::string> with_ema(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"ema.decay=0.6", "run.steps=6", "optimizer.lr=0.003"});
  return overrides;
}

}  // namespace

TEST_CASE("the share of new weights in their average follows decay, interval and warm-up",
          "[train]") {
  for (int step = 0; step < 200; ++step) {
    CAPTURE(step);
    REQUIRE(average_share({}, step) == 0);
    REQUIRE(average_share({.decay = 0.9}, step) == Approx(0.1));
    const double third = average_share({.decay = 0.9, .every = 3}, step);
    REQUIRE(third == (step % 3 == 2 ? Approx(0.1) : Approx(0)));
    const double warm = average_share({.decay = 0.99, .warmup = true}, step);
    REQUIRE(warm == Approx(1 - std::min(0.99, (1.0 + step) / (10.0 + step))));
  }
}

TEST_CASE("the average follows the weights from their first values on", "[train]") {
  const std::string more = GENERATE("ema.every=1", "ema.every=2", "ema.warmup=true");
  const std::string precision = GENERATE("precision.compute=fp32", "precision.compute=bf16",
                                         "precision.states=bf16");
  CAPTURE(more, precision);
  std::vector<std::string> overrides = with_ema({more, precision});
  if (precision.starts_with("precision.states")) overrides.emplace_back("precision.compute=bf16");
  const Recipe recipe = test::small_recipe("vit", overrides);
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        std::map<std::string, std::vector<double>> expected;
        for (const auto& [name, values] : session.gathered_weights())
          expected[name] = {values.begin(), values.end()};
        session.seek(0);
        for (int step = 0; step < 6; ++step) {
          session.enqueue_step();
          (void)session.executor().take_outcome();
          const double share = average_share(recipe.ema, step);
          for (const auto& [name, values] : session.gathered_weights()) {
            std::vector<double>& average = expected.at(name);
            for (std::size_t i = 0; i < values.size(); ++i)
              average[i] += share * (static_cast<double>(values[i]) - average[i]);
          }
        }
        const Weights found = averages(session);
        REQUIRE(found.size() == expected.size());
        double moved = 0;
        for (const auto& [name, values] : session.gathered_weights()) {
          CAPTURE(name);
          for (std::size_t i = 0; i < values.size(); ++i) {
            const double average = static_cast<double>(found.at(name)[i]);
            // Each of 6 updates rounds three times.
            REQUIRE(std::abs(average - expected.at(name)[i]) <=
                    18 * 0x1p-24 * (std::abs(average) + std::abs(static_cast<double>(values[i]))));
            moved = std::max(moved, std::abs(average - static_cast<double>(values[i])));
          }
        }
        REQUIRE(moved > 1e-4);
      });
}

TEST_CASE("an evaluation of the average changes nothing, and is the same under every strategy",
          "[train]") {
  struct Made {
    EvaluationTotals plain, average;
    std::vector<double> losses;
    Weights before, after;
  };
  const auto run = [](int ranks, const std::vector<std::string>& overrides) {
    const Recipe recipe = test::small_recipe("vit", with_ema(overrides));
    Made made;
    test::with_sessions(
        ranks, [&](int) { return recipe; },
        [&](int rank, Session& session) {
          session.seek(0);
          const auto step = [&] {
            session.enqueue_step();
            const double loss = session.executor().take_outcome().loss;
            if (rank == 0) made.losses.push_back(loss);
          };
          for (int i = 0; i < 4; ++i) step();
          const Weights before = session.gathered_weights();
          const EvaluationTotals plain = session.evaluate();
          const auto average = session.evaluate_average();
          const Weights after = session.gathered_weights();
          for (int i = 0; i < 2; ++i) step();
          if (rank == 0) {
            made.plain = plain;
            made.average = average.value_or(EvaluationTotals{});
            made.before = before;
            made.after = after;
          }
        });
    return made;
  };
  const std::string precision = GENERATE("precision.compute=fp32", "precision.compute=bf16");
  CAPTURE(precision);
  const Made alone = run(1, {precision});
  REQUIRE(alone.average.loss != alone.plain.loss);
  REQUIRE(alone.average.targets == alone.plain.targets);
  REQUIRE(alone.before == alone.after);
  REQUIRE(alone.losses == run(1, {precision, "ema.decay=0"}).losses);
  // bf16 rounds what ranks sum.
  const double tolerance = precision.ends_with("fp32") ? test::kPromised : 0.01;
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const std::string zero = fmt::format("parallel.zero.stage={}", stage);
    const Made made = run(3, {precision, zero});
    REQUIRE(std::abs(made.average.loss - alone.average.loss) <= tolerance * alone.average.loss);
    REQUIRE(made.before == made.after);
    REQUIRE(made.losses == run(3, {precision, zero, "ema.decay=0"}).losses);
  }
}

TEST_CASE("frozen weights have no average, states in bf16 come back as they were", "[train]") {
  const Recipe recipe = test::small_recipe(
      "vit", with_ema({"model.frozen=[\"vit.*\"]", "precision.compute=bf16",
                       "precision.states=bf16"}));
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        for (int i = 0; i < 3; ++i) {
          session.enqueue_step();
          (void)session.executor().take_outcome();
        }
        const Weights before = session.gathered_weights();
        REQUIRE(session.evaluate_average()->loss != session.evaluate().loss);
        REQUIRE(session.gathered_weights() == before);
        for (const auto& [name, values] : averages(session))
          REQUIRE(name.starts_with("classifier."));
      });
}

}  // namespace dstrain
