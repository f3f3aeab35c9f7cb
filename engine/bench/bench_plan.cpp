#include "engine/bench/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/stable_hash.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/load.h"
#include "engine/recipe/variants.h"

namespace dstrain::bench {
namespace {

std::string stem_of(const std::string& file) { return std::filesystem::path(file).stem().string(); }

/// What makes runs comparable: their length, one evaluation at the end where the recipe evaluates,
/// no checkpoints in between.
std::vector<std::string> common_overrides(const BenchPlan& plan, const Recipe& recipe) {
  std::vector<std::string> list = {"run.checkpoint.every=never"};
  if (plan.steps == 0) return list;
  const int all = plan.warmup + plan.steps + plan.tail;
  if (!recipe.phases.empty()) list.push_back("phases=[]");
  list.push_back("run.epochs=0");
  list.push_back(fmt::format("run.steps={}", all));
  if (!recipe.run.evaluate.is_never()) list.push_back(fmt::format("run.evaluate={}", all));
  return list;
}

/// The key that says how many samples are used for training.
std::string_view samples_key(const Recipe& recipe, const std::string& file) {
  const DatasetRow& row = dataset_row(recipe.data.name);
  for (const std::string_view key : {"data.samples", "data.subset"}) {
    if (reads(row, key)) return key;
  }
  throw Error(ErrorKind::usage,
              fmt::format("--samples-per-rank: data.name {} of {} has no limit of samples",
                          row.spelling, file),
              "leave it out, or name recipes with text or random data");
}

}  // namespace

std::vector<Turn> turns(const BenchPlan& plan) {
  std::vector<Turn> list;
  const std::vector<Case>& all = plan.cases;
  for (std::size_t first = 0; first < all.size();) {
    std::size_t end = first;
    while (end < all.size() && all[end].recipe == all[first].recipe &&
           all[end].ranks == all[first].ranks)
      ++end;
    for (int repeat = 1; repeat <= plan.repeat; ++repeat) {
      for (std::size_t i = first; i < end; ++i) {
        const std::size_t index = repeat % 2 == 1 ? i : first + end - 1 - i;
        list.push_back({.index = index, .repeat = repeat});
      }
    }
    first = end;
  }
  return list;
}

std::string recipe_name(const BenchPlan& plan, std::size_t recipe) {
  const std::string stem = stem_of(plan.recipes.at(recipe));
  int before = 0;
  for (std::size_t i = 0; i < recipe; ++i) before += stem_of(plan.recipes[i]) == stem ? 1 : 0;
  return before == 0 ? stem : fmt::format("{}.{}", stem, before + 1);
}

std::string run_name(const BenchPlan& plan, const Turn& turn) {
  const Case& one = plan.cases.at(turn.index);
  return fmt::format("{}-{}-{}-ranks-{}", recipe_name(plan, one.recipe), one.name, one.ranks,
                     turn.repeat);
}

std::vector<std::string> turn_overrides(const BenchPlan& plan, const Turn& turn) {
  const Case& one = plan.cases.at(turn.index);
  const std::string& file = plan.recipes.at(one.recipe);
  const Recipe recipe = load_recipe(file, plan.overrides).recipe;
  std::vector<std::string> overrides = common_overrides(plan, recipe);
  if (one.weak && one.first_ranks > 0) {
    const std::int64_t batch = std::int64_t{recipe.batch.global} * one.ranks;
    if (batch % one.first_ranks != 0) {
      throw Error(
          ErrorKind::usage,
          fmt::format("--scaling weak: batch.global {} of {} is for {} ranks, and for {} ranks is "
                      "no whole number",
                      recipe.batch.global, file, one.first_ranks, one.ranks),
          "name numbers of ranks that are multiples of the first one");
    }
    overrides.push_back(fmt::format("batch.global={}", batch / one.first_ranks));
  }
  if (one.samples_per_rank > 0) {
    overrides.push_back(
        fmt::format("{}={}", samples_key(recipe, file), one.samples_per_rank * one.ranks));
  }
  const auto append = [&overrides](const std::vector<std::string>& more) {
    overrides.insert(overrides.end(), more.begin(), more.end());
  };
  append(one.overrides);
  append(plan.overrides);
  return overrides;
}

std::string turn_fingerprint(const BenchPlan& plan, const Turn& turn) {
  const Case& one = plan.cases.at(turn.index);
  std::filesystem::path file = plan.recipes.at(one.recipe);
  if (const auto variant = find_variant(file); variant && !std::filesystem::exists(file))
    file = variant->file;
  std::string text = read_file(file);
  for (const std::string& override : turn_overrides(plan, turn)) text += '\n' + override;
  for (const std::string& variable : plan.environment) text += '\n' + variable;
  return fmt::format("{:016x}", stable_hash(text));
}

std::vector<std::string> launch_arguments(const BenchPlan& plan, const Turn& turn,
                                          const std::filesystem::path& folder) {
  const Case& one = plan.cases.at(turn.index);
  std::vector<std::string> arguments = {"launch",     plan.recipes.at(one.recipe),
                                        "--ranks",    fmt::to_string(one.ranks),
                                        "--run-name", run_name(plan, turn)};
  for (const std::string& override : turn_overrides(plan, turn))
    arguments.insert(arguments.end(), {"--set", override});
  for (const std::string& variable : plan.environment)
    arguments.insert(arguments.end(), {"--env", variable});
  arguments.insert(arguments.end(), {"--set", "run.output=" + folder.string()});
  return arguments;
}

nlohmann::ordered_json plan_json(const BenchPlan& plan) {
  nlohmann::ordered_json json = {{"recipes", plan.recipes}};
  json["cases"] = nlohmann::ordered_json::array();
  for (const Case& one : plan.cases) {
    json["cases"].push_back({{"recipe", plan.recipes.at(one.recipe)},
                             {"ranks", one.ranks},
                             {"name", one.name},
                             {"overrides", one.overrides}});
    if (one.first_ranks > 0) json["cases"].back()["first_ranks"] = one.first_ranks;
    if (one.samples_per_rank > 0) json["cases"].back()["samples_per_rank"] = one.samples_per_rank;
  }
  json["repeat"] = plan.repeat;
  json["steps"] = plan.steps;
  json["warmup"] = plan.warmup;
  if (plan.tail > 0) json["tail"] = plan.tail;
  json["overrides"] = plan.overrides;
  if (!plan.environment.empty()) json["environment"] = plan.environment;
  return json;
}

}  // namespace dstrain::bench
