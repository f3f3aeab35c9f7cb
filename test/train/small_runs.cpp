#include "test/train/small_runs.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/recipe/load.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/train/sessions.h"

namespace dstrain::test {

Recipe small_recipe(const std::string& model, const std::vector<std::string>& overrides) {
  const bool bloom = model.starts_with("bloom"), mixtral = model.starts_with("mixtral"),
             cnn = model == "cnn", images = cnn || model == "vit";
  std::vector<std::string> all = {fmt::format("run.steps={}", kSmallSteps), "run.epochs=0",
                                  "batch.global=24", "batch.micro=4", "precision.compute=fp32",
                                  // The norm adds up stages in another order, and clipping uses it.
                                  "optimizer.clip_norm=0"};
  if (!images) {
    all.insert(all.end(),
               {"model.name=" + model, "model.width=32", "model.layers=4", "model.heads=4",
                "model.vocab_size=97", "data.samples=64", "data.sequence=16", "optimizer.lr=0.003",
                model.starts_with("qwen3") || model.starts_with("gemma") || mixtral
                    ? "optimizer.no_decay=[\"*norm*\"]"
                : model == "gpt2" ? "optimizer.no_decay=[\"*.ln_*\", \"*.bias\"]"
                                  : "optimizer.no_decay=[\"*norm*\", \"*.bias\"]"});
    if (!bloom && model != "gpt2") all.push_back("model.kv_heads=2");
    if (!bloom && !mixtral) all.push_back("model.mlp_width=64");
  }
  // Samples for all steps; an evaluation of them takes less than the steps, and its last
  // micro-batches are uneven among ranks.
  if (images) all.emplace_back("data.subset=74");
  // The update follows the gradient: AdamW's first ones follow its sign, and so rounding.
  if (cnn) all.insert(all.end(), {"optimizer.name=sgd", "optimizer.lr=0.02"});
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(cnn      ? "recipes/cnn/cnn-basic_digits.yaml"
                     : images ? "recipes/quickstart.yaml"
                     : bloom  ? "recipes/bloom/bloom-560m_random.yaml"
                              : "recipes/qwen/qwen2.5-3b_random.yaml",
                     all)
      .recipe;
}

Trace small_run(const std::string& model, int ranks, const std::vector<std::string>& overrides,
                bool rehearse) {
  const Recipe recipe = small_recipe(model, overrides);
  std::vector<Trace> by_rank(static_cast<std::size_t>(ranks));
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        Trace& own = by_rank[static_cast<std::size_t>(rank)];
        own.start = session.gathered_weights();
        session.seek(0);
        if (rehearse) session.rehearse();
        for (int step = 0; step < kSmallSteps; ++step) {
          session.enqueue_step();
          const StepOutcome outcome = session.executor().take_outcome();
          own.losses.push_back(outcome.loss);
          own.norms.push_back(outcome.gradient_norm);
        }
        own.weights = session.gathered_weights();
        if (!recipe.run.evaluate.is_never()) own.evaluation = session.evaluate();
      });
  for (const Trace& other : by_rank) {
    REQUIRE(other.losses == by_rank.front().losses);
    REQUIRE(other.norms == by_rank.front().norms);
  }
  return std::move(by_rank.front());
}

std::vector<std::string> joined(std::vector<std::string> list,
                                const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

void check_near(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i, found[i], expected[i]);
    CHECK(std::abs(found[i] - expected[i]) <= kPromised * std::abs(expected[i]));
  }
}

void check_near(const Trace& found, const Trace& expected) {
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    CAPTURE(step);
    REQUIRE(std::abs(found.losses[step] - expected.losses[step]) <=
            kPromised * std::abs(expected.losses[step]));
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
    // The biases of keys start at 0 and have small gradients: AdamW enlarges their rounding errors.
    const double rounding = name.ends_with("k_proj.bias") ? 1e-5 : 1e-6;
    REQUIRE(std::sqrt(difference) <= 1e-4 * std::sqrt(size) + rounding);
  }
}

}  // namespace dstrain::test
