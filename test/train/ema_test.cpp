#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/train/session/learning_rate.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/train/sessions.h"
#include "test/train/small_rank.h"
#include "test/train/small_runs.h"

// The average of the weights over the steps.

namespace dstrain {
namespace {

using Weights = std::map<std::string, std::vector<float>>;

/// Averages of a session of one rank.
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

Recipe averaged_recipe(const std::string& model, const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"ema.decay=0.6", "run.steps=6"};
  if (model == "vit") all.emplace_back("optimizer.lr=0.003");
  all.insert(all.end(), overrides.begin(), overrides.end());
  return test::small_recipe(model, all);
}

/// Each tensor within 1e-4 of its own size.
void check_weights_near(const Weights& found, const Weights& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      difference += std::pow(double{found.at(name)[i]} - tensor[i], 2);
      size += std::pow(double{tensor[i]}, 2);
    }
    // The gradient of a key's bias is 0 but for rounding, which AdamW enlarges.
    const double rounding = name.ends_with("key.bias") ? 1e-4 : 1e-6;
    REQUIRE(std::sqrt(difference) <= 1e-4 * std::sqrt(size) + rounding);
  }
}

bool is_counter(const std::string& tensor) { return tensor.ends_with("num_batches_tracked"); }

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

TEST_CASE("the average follows weights and running statistics from their first values on",
          "[train]") {
  const std::string model = GENERATE("vit", "cnn");
  const std::string more = GENERATE("ema.every=1", "ema.every=2", "ema.warmup=true");
  const std::string precision = GENERATE("precision.compute=fp32", "precision.compute=bf16",
                                         "precision.states=bf16", "precision.states=fp32_split");
  CAPTURE(model, more, precision);
  std::vector<std::string> overrides = {more, precision};
  if (precision.starts_with("precision.states")) overrides.emplace_back("precision.compute=bf16");
  const Recipe recipe = averaged_recipe(model, overrides);
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        struct Expected {
          double average = 0, size = 0;
        };
        std::map<std::string, std::vector<Expected>> expected;
        for (const auto& [name, values] : session.gathered_weights()) {
          if (is_counter(name)) continue;
          for (const float value : values)
            expected[name].push_back({double{value}, std::abs(double{value})});
        }
        session.seek(0);
        for (int step = 0; step < 6; ++step) {
          session.enqueue_step();
          (void)session.executor().take_outcome();
          const double share = average_share(recipe.ema, step);
          const Weights weights = session.gathered_weights();
          for (auto& [name, elements] : expected) {
            const std::vector<float>& now = weights.at(name);
            for (std::size_t i = 0; i < elements.size(); ++i) {
              const double value = double{now[i]};
              elements[i].average += share * (value - elements[i].average);
              elements[i].size = std::max(elements[i].size, std::abs(value));
            }
          }
        }
        const Weights found = averages(session), last = session.gathered_weights();
        REQUIRE(found.size() == expected.size());
        double moved = 0;
        for (const auto& [name, elements] : expected) {
          CAPTURE(name);
          const std::vector<float>&average_of = found.at(name), &last_of = last.at(name);
          const bool near =
              std::ranges::equal(elements, average_of, [](const Expected& wanted, float average) {
                // Each of 6 updates rounds three times, of a difference up to twice as large.
                return std::abs(double{average} - wanted.average) <= 36 * 0x1p-24 * wanted.size;
              });
          REQUIRE(near);
          for (std::size_t i = 0; i < elements.size(); ++i) {
            const double average = double{average_of[i]};
            moved = std::max(moved, std::abs(average - double{last_of[i]}));
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
    Weights before, after, averages;
  };
  const std::string model = GENERATE("vit", "cnn");
  const auto run = [&](int ranks, const std::vector<std::string>& overrides) {
    const Recipe recipe = averaged_recipe(model, overrides);
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
          Weights averages;
          if (recipe.ema.decay > 0) {
            session.states().take_average();
            averages = session.gathered_weights();
            session.states().give_back_average();
          }
          for (int i = 0; i < 2; ++i) step();
          if (rank == 0) {
            made.plain = plain;
            made.average = average.value_or(EvaluationTotals{});
            made.before = before;
            made.after = after;
            made.averages = averages;
          }
        });
    return made;
  };
  const std::string precision =
      GENERATE("precision.compute=fp32", "precision.compute=bf16", "precision.gradients=bf16");
  if (model == "cnn" && precision == "precision.gradients=bf16") return;  // refused
  CAPTURE(model, precision);
  const auto with = [&](std::vector<std::string> overrides) {
    overrides.push_back(precision);
    if (precision == "precision.gradients=bf16")
      overrides.insert(overrides.end(), {"precision.compute=bf16", "precision.reduce=bf16"});
    return overrides;
  };
  const Made alone = run(1, with({}));
  REQUIRE(alone.average.loss != alone.plain.loss);
  REQUIRE(alone.average.targets == alone.plain.targets);
  REQUIRE(alone.before == alone.after);
  REQUIRE(alone.losses == run(1, with({"ema.decay=0"})).losses);
  // bf16 rounds what ranks sum.
  const bool exact = precision.ends_with("fp32");
  const double tolerance = exact ? test::kPromised : 0.01;
  for (const int stage : exact ? std::vector{0, 2, 3} : std::vector{1, 3}) {
    CAPTURE(stage);
    const std::string zero = fmt::format("parallel.zero.stage={}", stage);
    const Made made = run(3, with({zero}));
    REQUIRE(std::abs(made.average.loss - alone.average.loss) <= tolerance * alone.average.loss);
    REQUIRE(made.before == made.after);
    if (exact) check_weights_near(made.averages, alone.averages);
    REQUIRE(made.losses == run(3, with({zero, "ema.decay=0"})).losses);
  }
}

TEST_CASE("frozen weights have no average, states in bf16 come back as they were", "[train]") {
  const Recipe recipe = averaged_recipe(
      "vit", {"model.frozen=[\"vit.*\"]", "precision.compute=bf16", "precision.states=bf16"});
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
