#include <fmt/format.h>

#include <cmath>
#include <map>
#include <vector>

#include "engine/recipe/load.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

namespace dstrain {
namespace {

constexpr int kLanguageSteps = 4;  ///< the last follow weights and moments of steps before

/// A language model small enough for many of them, on random tokens.
Recipe language_recipe(const std::string& model, const std::vector<std::string>& overrides) {
  const bool bloom = model.starts_with("bloom"), gpt2 = model.starts_with("gpt2");
  std::vector<std::string> all = {"model.name=" + model,
                                  "model.width=32",
                                  "model.layers=3",
                                  "model.heads=4",
                                  "model.vocab_size=97",
                                  "data.samples=64",
                                  "data.sequence=16",
                                  "batch.global=24",
                                  "batch.micro=4",
                                  "precision.compute=fp32",
                                  fmt::format("run.steps={}", kLanguageSteps),
                                  "optimizer.lr=0.003"};
  if (!bloom) all.push_back("model.mlp_width=64");
  if (!bloom && !gpt2 && !model.starts_with("pythia")) all.push_back("model.kv_heads=2");
  if (model.starts_with("phi") || model.starts_with("olmo2")) {
    all.push_back("optimizer.no_decay=[\"*norm*\"]");
  } else if (model.starts_with("qwen3") || model.starts_with("llama") ||
             model.starts_with("mistral") || model.starts_with("gemma")) {
    all.insert(all.end(), {"model.head_dim=16", "optimizer.no_decay=[\"*norm*\"]"});
  } else if (gpt2) {
    all.push_back("optimizer.no_decay=[\"*.ln_*\", \"*.bias\"]");
  } else {
    all.push_back("optimizer.no_decay=[\"*norm*\", \"*.bias\"]");
  }
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(
             bloom ? "recipes/bloom/bloom-560m_random.yaml" : "recipes/qwen/qwen2.5-3b_random.yaml",
             all)
      .recipe;
}

std::vector<double> losses(const std::string& model, int ranks,
                           const std::vector<std::string>& overrides) {
  const Recipe recipe = language_recipe(model, overrides);
  std::vector<std::vector<double>> by_rank(static_cast<std::size_t>(ranks));
  test::with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        for (int step = 0; step < kLanguageSteps; ++step) {
          session.enqueue_step();
          by_rank[static_cast<std::size_t>(rank)].push_back(session.executor().take_outcome().loss);
        }
      });
  for (const auto& other : by_rank) REQUIRE(other == by_rank.front());
  return by_rank.front();
}

}  // namespace

TEST_CASE("a language model has the losses of one rank under every strategy", "[train][parity]") {
  // Tied head (a group of two blocks), untied head, ALiBi with a tied head, norms of queries and
  // keys, scaled rotary positions, joined tensors, learnt positions, norms on both sides, soft
  // caps.
  const std::string model =
      GENERATE(as<std::string>(), "qwen2.5-0.5b", "qwen2.5-7b", "bloom-560m", "qwen3-0.6b",
               "llama-3.1-8b", "mistral-7b-v0.3", "phi-4-mini", "pythia-160m", "gpt2", "olmo2-7b",
               "gemma-3-270m", "gemma-2-2b");
  static std::map<std::string, std::vector<double>> alone;
  if (!alone.contains(model)) alone[model] = losses(model, 1, {});
  const std::vector<double>& expected = alone.at(model);
  CHECK(std::abs(expected.front() - std::log(97)) < 0.1);  // random weights know nothing
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(model, stage);
  test::check_near(losses(model, 2, {fmt::format("parallel.zero.stage={}", stage)}), expected);
  test::check_near(losses(model, 3,
                          {fmt::format("parallel.zero.stage={}", stage), "batch.micro=3",
                           "memory.recompute=blocks"}),
                   expected);
}

TEST_CASE("frozen tensors stay as they were, the others learn", "[train]") {
  const std::vector<std::string> frozen = {
      "model.frozen=[\"model.embed_tokens.weight\", \"model.layers.0.*\"]"};
  const int ranks = GENERATE(1, 2);
  const int stage = GENERATE(0, 2, 3);
  CAPTURE(ranks, stage);
  auto overrides = frozen;
  overrides.push_back(fmt::format("parallel.zero.stage={}", stage));
  const Recipe recipe = language_recipe("qwen2.5-7b", overrides);
  test::with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int, Session& session) {
        const auto before = session.gathered_weights();
        session.seek(0);
        session.enqueue_step();
        (void)session.executor().take_outcome();
        const auto after = session.gathered_weights();
        for (const auto& [name, values] : before) {
          const bool fixed =
              name == "model.embed_tokens.weight" || name.starts_with("model.layers.0.");
          if ((after.at(name) == values) != fixed) FAIL("tensor " + name);
        }
      });
}

}  // namespace dstrain
