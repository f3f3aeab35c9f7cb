#include "engine/bench/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/recipe/families.h"
#include "engine/recipe/load.h"

namespace dstrain::bench {
namespace {

constexpr int kStrongTokens = 65'536;

/// Tokens of a sample; 0: images.
int sample_tokens(const Recipe& recipe) {
  const ModelFamily* family = family_of(recipe.model.name);
  const bool text = family == nullptr || family->modality == Modality::text;
  return text ? recipe.data.sequence : 0;
}

/// `tokens` in samples. `option` gave them.
int whole_samples(int tokens, const Recipe& recipe, const std::string& file, const char* option) {
  const int sequence = sample_tokens(recipe);
  if (sequence == 0) {
    throw Error(ErrorKind::usage, fmt::format("{}: {} trains on images", option, file),
                "leave it out: batch.global of the recipe is taken");
  }
  if (tokens % sequence != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("{} {} is no multiple of data.sequence {} of {}", option, tokens,
                            sequence, file),
                fmt::format("{} would be one, or set data.sequence",
                            std::max(1, tokens / sequence) * sequence));
  }
  return tokens / sequence;
}

int strong_samples(const ParallelOptions& options, const Recipe& recipe, const std::string& file) {
  if (options.tokens > 0) return whole_samples(options.tokens, recipe, file, "--tokens");
  const int sequence = sample_tokens(recipe);
  return sequence == 0 ? recipe.batch.global : std::max(1, kStrongTokens / sequence);
}

}  // namespace

int strong_samples(const ParallelOptions& options, std::size_t recipe) {
  const std::string& file = options.recipes.at(recipe);
  return strong_samples(options, load_recipe(file, options.overrides).recipe, file);
}

std::vector<ParallelWay> parallel_ways(const ParallelOptions& options) {
  std::vector<ParallelWay> ways;
  const int most = std::ranges::max(options.ranks);
  for (std::size_t i = 0; i < options.recipes.size(); ++i) {
    const std::string& file = options.recipes[i];
    const Recipe recipe = load_recipe(file, options.overrides).recipe;
    const int strong = strong_samples(options, recipe, file);
    const int weak = options.tokens_per_rank > 0
                         ? whole_samples(options.tokens_per_rank, recipe, file, "--tokens-per-rank")
                         : std::max(1, strong / most);
    for (const int ranks : options.ranks) {
      const bool equal = options.weak && options.strong && weak * ranks == strong;
      if (options.weak) {
        ways.push_back(
            {.recipe = i, .ranks = ranks, .samples = weak * ranks, .weak = true, .strong = equal});
      }
      if (options.strong && !equal)
        ways.push_back({.recipe = i, .ranks = ranks, .samples = strong, .strong = true});
    }
  }
  return ways;
}

BenchPlan parallel_plan(const ParallelOptions& options, const std::vector<ParallelWay>& ways) {
  const int counted = options.warmup + options.steps;
  const int last = first_lone_step(counted) + kLoneSteps - 1;
  BenchPlan plan{.recipes = options.recipes,
                 .variants = {},
                 .ranks = options.ranks,
                 .repeat = options.repeat,
                 .steps = last - options.warmup,
                 .warmup = options.warmup};
  plan.overrides = {"run.evaluate=never",
                    fmt::format("trace.steps={}", kTracedSteps),
                    fmt::format("trace.first={}", first_traced_step(counted)),
                    fmt::format("trace.warmup={}", kEndWarmup),
                    "trace.compress=gzip",
                    "trace.merge=false",
                    "trace.output=\"\""};
  plan.environment = {fmt::format("DSTRAIN_SKIP_EXCHANGES={}", first_skipping_step(counted))};
  plan.overrides.insert(plan.overrides.end(), options.overrides.begin(), options.overrides.end());
  for (const ParallelWay& way : ways) {
    Variant variant{.name = fmt::format("batch{}", way.samples),
                    .overrides = {fmt::format("batch.global={}", way.samples)}};
    if (way.row > 0) {
      variant.name += fmt::format("-auto{}", way.row);
      variant.overrides.insert(variant.overrides.end(), way.settings.begin(), way.settings.end());
    }
    plan.chosen.push_back(
        {.recipe = way.recipe, .variant = plan.variants.size(), .ranks = way.ranks});
    plan.variants.push_back(std::move(variant));
  }
  return plan;
}

}  // namespace dstrain::bench
