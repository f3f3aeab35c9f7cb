#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cmd/bench_preset.h"
#include "cmd/number_option.h"
#include "cmd/recipe_auto.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/bench/parallel_pages.h"
#include "engine/bench/parallel_plan.h"
#include "engine/bench/parallel_results.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using bench::Case;

struct BenchParallelOptions : bench::ParallelOptions {
  std::vector<std::string> scaling = {"weak", "strong"};
  int auto_rows = 0;
};

/// --set is for what the bench does not set itself, or its rows would not be what they say.
void require_free_keys(const BenchParallelOptions& options) {
  std::vector<std::pair<std::string, std::string>> taken = {
      {"batch.global", "--tokens and --tokens-per-rank say how large a step is"},
      {"run.steps", "--steps says how long a run is"},
      {"run.epochs", "--steps says how long a run is"}};
  if (options.auto_rows > 0) {
    for (const std::string& setting : settings(PlanChoice()))
      taken.emplace_back(setting.substr(0, setting.find('=')),
                         "--auto chooses it; set it in a recipe");
  }
  for (const std::string& override : options.overrides) {
    const std::string key = override.substr(0, override.find('='));
    const auto found = std::ranges::find(taken, key, &std::pair<std::string, std::string>::first);
    if (found != taken.end())
      throw Error(ErrorKind::usage, fmt::format("--set {}: the bench sets {}", override, key),
                  found->second);
  }
}

bench::ParallelOptions checked(const BenchParallelOptions& options) {
  bench::ParallelOptions parallel = options;
  require_free_keys(options);
  require_once(options.scaling, "--scaling");
  const auto has = [&](const char* name) {
    return std::ranges::find(options.scaling, name) != options.scaling.end();
  };
  parallel.weak = has("weak");
  parallel.strong = has("strong");
  if (parallel.tokens_per_rank > 0 && !parallel.weak) {
    throw Error(ErrorKind::usage,
                "--tokens-per-rank is for weak scaling, which --scaling leaves out",
                "use --tokens, or --scaling weak");
  }
  if (parallel.tokens > 0 && !parallel.strong && options.auto_rows == 0) {
    throw Error(ErrorKind::usage, "--tokens is for strong scaling, which --scaling leaves out",
                "use --tokens-per-rank, or --scaling strong");
  }
  return parallel;
}

/// The first rows of the search and the default layouts, of a step of strong scaling.
std::vector<Case> searched_cases(const bench::ParallelOptions& options, std::size_t recipe,
                                 int ranks, int rows) {
  const int samples = bench::strong_samples(options, recipe);
  std::vector<std::string> overrides = options.overrides;
  overrides.push_back(fmt::format("batch.global={}", samples));
  const AutoPlan found =
      search_recipe(options.recipes[recipe], overrides, {}, {.ranks = ranks, .top = rows}).plan;
  std::vector<Case> cases;
  const auto add = [&](const AutoRow& row) {
    const int number = static_cast<int>(cases.size()) + 1;
    cases.push_back(bench::layout_case(recipe, ranks, samples, number, settings(row.choice)));
    cases.back().search = {.recipe = static_cast<int>(recipe),
                           .row = number,
                           .step_s = row.step_s,
                           .is_default = is_default_layout(row.choice, ranks)};
  };
  for (const AutoRow& row : found.rows) add(row);
  for (const AutoRow& row : found.defaults) add(row);
  return cases;
}

/// What a search goes by: all but the layout, which it chooses, and how long a run is.
Recipe searched_recipe(const bench::ParallelOptions& options, std::size_t index) {
  Recipe recipe = load_recipe(options.recipes[index], options.overrides).recipe;
  const Backend backend = recipe.parallel.backend;
  recipe.parallel = {};
  recipe.parallel.backend = backend;
  recipe.batch = {};
  recipe.memory.recompute = {};
  recipe.run = {};
  recipe.trace = {};
  recipe.metrics = {};
  return recipe;
}

/// The first recipe whose search gives the same rows.
std::size_t first_searched(const bench::ParallelOptions& options, std::size_t recipe) {
  const Recipe own = searched_recipe(options, recipe);
  for (std::size_t other = 0; other < recipe; ++other) {
    if (searched_recipe(options, other) == own) return other;
  }
  return recipe;
}

/// Rows of the search go behind the recipe's own cases of the same ranks, so that they take turns.
std::vector<Case> all_cases(const bench::ParallelOptions& options, int rows) {
  const std::vector<Case> own = bench::parallel_cases(options);
  if (rows == 0) return own;
  std::vector<Case> all;
  for (std::size_t recipe = 0; recipe < options.recipes.size(); ++recipe) {
    const std::size_t search = first_searched(options, recipe);
    for (const int ranks : options.ranks) {
      for (const Case& one : own) {
        if (one.recipe != recipe || one.ranks != ranks) continue;
        all.push_back(one);
        if (one.strong) all.back().search.recipe = static_cast<int>(search);
      }
      if (search != recipe) continue;
      try {
        std::ranges::move(searched_cases(options, recipe, ranks, rows), std::back_inserter(all));
      } catch (const Error& error) {
        print_error("note: --auto {} of {} on {} ranks: {}\n", rows, options.recipes[recipe], ranks,
                    error.what());
      }
    }
  }
  return all;
}

/// The traces of each recipe that names a folder of them: those of its own layout on the max ranks.
/// Returns what was copied.
std::vector<std::string> copy_all_profiles(const bench::ParallelOptions& options,
                                           const bench::BenchResults& results) {
  std::vector<std::string> notes;
  for (std::size_t recipe = 0; recipe < options.recipes.size(); ++recipe) {
    const std::string folder =
        load_recipe(options.recipes[recipe], options.overrides).recipe.trace.output;
    if (folder.empty()) continue;
    int max = 0;
    fs::path run;
    for (std::size_t i = 0; i < results.cases.size(); ++i) {
      const Case& one = results.cases[i].which;
      if (one.recipe != recipe || one.search.row > 0 || !results.cases[i].ran()) continue;
      if (one.ranks > max) run = results.runs[results.runs_of(i).front()].data.path;
      max = std::max(max, one.ranks);
    }
    if (max == 0) continue;
    if (const int ranks = bench::copy_profiles(run, folder); ranks > 0)
      notes.push_back(fmt::format("profile of {}: {} of {} rank{}", run.filename().string(), folder,
                                  ranks, ranks == 1 ? "" : "s"));
  }
  return notes;
}

BenchPreset parallel_preset(const BenchParallelOptions& options) {
  const bench::ParallelOptions parallel = checked(options);
  const bench::BenchPlan plan =
      bench::parallel_plan(parallel, all_cases(parallel, options.auto_rows));
  return {.plan = plan,
          .pages =
              [steps = parallel.steps](bench::BenchResults& results) {
                bench::add_layouts(results, steps);
                return bench::parallel_pages(results.cases);
              },
          .after =
              [parallel](const bench::BenchResults& results) {
                return copy_all_profiles(parallel, results);
              }};
}

}  // namespace

Command add_bench_parallel(CLI::App& root) {
  auto options = std::make_shared<BenchParallelOptions>();
  CLI::App* app = root.add_subcommand(
      "parallel",
      "Train recipes of several layouts on several numbers of ranks; parts of a step, bubbles, "
      "memory, collectives, scaling.");
  app->footer(
      "Each recipe, number of ranks and batch is a run of `dstrain launch`, beside what `dstrain "
      "plan` says of it.\n"
      "Each ends with 3 traced steps behind one of warm-up; where the recipe names trace.output, "
      "the profile of its run on\n"
      "the most ranks goes there, a rank{r}_trace.json each.\n"
      "A layout that does not fit a number of ranks is left out with its reason. Runs that have "
      "ended are kept: the same\n"
      "command goes on, also after Ctrl-C. Writes parallel.md, parallel.csv (a row for each run) "
      "and parallel.json.\n"
      "Example: dstrain bench parallel recipes/qwen/qwen2.5-3b_metamathqa_{1d,2d,3d}.yaml --ranks "
      "1,2,4,8 --auto 3");
  add_recipes(*app, options->recipes)
      ->description(
          "Recipes, a layout each: YAML files, or names of those that `dstrain recipe "
          "list` lists.");
  add_ranks(*app, "--ranks", options->ranks, "Numbers of ranks.")->required();
  add_list(*app, "--scaling", options->scaling,
           "weak: tokens of a rank stay; strong: tokens of a step stay. Default: weak,strong.")
      ->check(CLI::IsMember({"weak", "strong"}));
  app->add_option("--tokens", options->tokens,
                  "Of a step of strong scaling. Default: 65536, of images batch.global.")
      ->check(number_in(1, 1 << 30));
  app->add_option("--tokens-per-rank", options->tokens_per_rank,
                  "Of weak scaling. Default: those of strong scaling on the most ranks.")
      ->check(number_in(1, 1 << 30));
  app->add_option(
         "--auto", options->auto_rows,
         "Run so many rows of `plan --auto`, too, and its default layouts, once for recipes "
         "that differ in their layout alone.")
      ->check(number_in(1, 100));
  app->add_option("--steps", options->steps, "Steps that count. Default: 20.")
      ->check(number_in(2, 1 << 20));
  app->add_option("--warmup", options->warmup, "Steps before these. Default: 5.")
      ->check(number_in(1, 1 << 20));
  app->add_option("--repeat", options->repeat,
                  "Runs of each, by turns; figures are of the one of median step. Default: 1.")
      ->check(number_in(1, 1000));
  add_bench_options(*app, *options, "bench-parallel");
  return {app,
          [options] { return run_bench(*options, [&] { return parallel_preset(*options); }); }};
}

}  // namespace dstrain
