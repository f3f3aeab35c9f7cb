#include "engine/bench/parallel_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

Case layout_case(std::size_t recipe, int ranks, int samples, int auto_row,
                 const std::vector<std::string>& settings) {
  Case made{.recipe = recipe,
            .ranks = ranks,
            .name = fmt::format("batch{}", samples),
            .overrides = {fmt::format("batch.global={}", samples)},
            .samples = samples,
            .search = {.row = auto_row}};
  if (auto_row > 0) made.name += fmt::format("-auto{}", auto_row);
  made.overrides.insert(made.overrides.end(), settings.begin(), settings.end());
  return made;
}

std::vector<Case> parallel_cases(const ParallelOptions& options) {
  std::vector<Case> cases;
  const int max = std::ranges::max(options.ranks);
  for (std::size_t i = 0; i < options.recipes.size(); ++i) {
    const std::string& file = options.recipes[i];
    const Recipe recipe = load_recipe(file, options.overrides).recipe;
    const int strong = strong_samples(options, recipe, file);
    const int weak = options.tokens_per_rank > 0
                         ? whole_samples(options.tokens_per_rank, recipe, file, "--tokens-per-rank")
                         : std::max(1, strong / max);
    for (const int ranks : options.ranks) {
      if (options.weak) cases.push_back(layout_case(i, ranks, weak * ranks));
      if (options.weak) cases.back().weak = true;
      // Both are one run where their batches are equal.
      if (options.strong && !(options.weak && weak * ranks == strong))
        cases.push_back(layout_case(i, ranks, strong));
      if (options.strong) cases.back().strong = true;
    }
  }
  return cases;
}

BenchPlan parallel_plan(const ParallelOptions& options, std::vector<Case> cases) {
  const int counted = options.warmup + options.steps;
  BenchPlan plan{.recipes = options.recipes,
                 .cases = std::move(cases),
                 .repeat = options.repeat,
                 .steps = options.steps,
                 .warmup = options.warmup,
                 .tail = first_lone_step(counted) + kLoneSteps - 1 - counted};
  plan.overrides = {"run.evaluate=never",
                    fmt::format("trace.steps={}", kTracedSteps),
                    fmt::format("trace.first={}", first_traced_step(counted)),
                    fmt::format("trace.warmup={}", kEndWarmup),
                    "trace.compress=gzip",
                    "trace.merge=false",
                    "trace.output=\"\""};
  plan.environment = {fmt::format("DSTRAIN_SKIP_EXCHANGES={}", first_skipping_step(counted))};
  plan.overrides.insert(plan.overrides.end(), options.overrides.begin(), options.overrides.end());
  return plan;
}

}  // namespace dstrain::bench
