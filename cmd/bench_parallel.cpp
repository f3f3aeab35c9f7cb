#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cmd/bench_part.h"
#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_auto.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/bench/parallel_files.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using bench::BenchPlan;
using bench::ParallelResult;
using bench::ParallelWay;

struct BenchParallelOptions {
  bench::ParallelOptions parallel;
  std::vector<std::string> scaling = {"weak", "strong"};
  int auto_rows = 0;
  std::string output = "bench-parallel";
  bool retry = false;
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
  for (const std::string& override : options.parallel.overrides) {
    const std::string key = override.substr(0, override.find('='));
    const auto found = std::ranges::find(taken, key, &std::pair<std::string, std::string>::first);
    if (found != taken.end())
      throw Error(ErrorKind::usage, fmt::format("--set {}: the bench sets {}", override, key),
                  found->second);
  }
}

bench::ParallelOptions checked(const BenchParallelOptions& options) {
  bench::ParallelOptions parallel = options.parallel;
  require_free_keys(options);
  require_once(parallel.recipes, "the list of recipes");
  require_once(parallel.ranks, "--ranks");
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
std::vector<ParallelWay> searched_ways(const bench::ParallelOptions& options, std::size_t recipe,
                                       int ranks, int rows) {
  const int samples = bench::strong_samples(options, recipe);
  std::vector<std::string> overrides = options.overrides;
  overrides.push_back(fmt::format("batch.global={}", samples));
  const AutoPlan found =
      search_recipe(options.recipes[recipe], overrides, {}, {.ranks = ranks, .top = rows}).plan;
  std::vector<ParallelWay> ways;
  const auto add = [&](const AutoRow& row) {
    ways.push_back({.recipe = recipe,
                    .ranks = ranks,
                    .samples = samples,
                    .search = static_cast<int>(recipe),
                    .row = static_cast<int>(ways.size()) + 1,
                    .row_step_s = row.step_s,
                    .row_is_default = is_default_layout(row.choice, ranks),
                    .settings = settings(row.choice)});
  };
  for (const AutoRow& row : found.rows) add(row);
  for (const AutoRow& row : found.defaults) add(row);
  return ways;
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

/// Rows of the search go behind the recipe's own ways of the same ranks, so that they take turns.
std::vector<ParallelWay> all_ways(const bench::ParallelOptions& options, int rows,
                                  std::vector<std::string>& notes) {
  const std::vector<ParallelWay> own = bench::parallel_ways(options);
  if (rows == 0) return own;
  std::vector<ParallelWay> all;
  for (std::size_t recipe = 0; recipe < options.recipes.size(); ++recipe) {
    const std::size_t search = first_searched(options, recipe);
    for (const int ranks : options.ranks) {
      for (ParallelWay way : own) {
        if (way.recipe != recipe || way.ranks != ranks) continue;
        if (way.strong) way.search = static_cast<int>(search);
        all.push_back(std::move(way));
      }
      if (search != recipe) continue;
      try {
        for (ParallelWay& way : searched_ways(options, recipe, ranks, rows))
          all.push_back(std::move(way));
      } catch (const Error& error) {
        notes.push_back(fmt::format("--auto {} of {} on {} ranks: {}", rows,
                                    options.recipes[recipe], ranks, error.what()));
      }
    }
  }
  return all;
}

/// The traces of each recipe that names a folder of them: those of its own layout on the max ranks.
void write_profiles(const bench::ParallelOptions& options, const BenchPlan& plan,
                    const std::vector<ParallelResult>& results, const fs::path& runs) {
  for (std::size_t recipe = 0; recipe < options.recipes.size(); ++recipe) {
    const std::string folder =
        load_recipe(options.recipes[recipe], options.overrides).recipe.trace.output;
    if (folder.empty()) continue;
    std::size_t best = results.size();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const ParallelWay& way = results[i].way;
      if (way.recipe != recipe || way.row > 0 || !results[i].ran()) continue;
      if (best == results.size() || way.ranks > results[best].way.ranks) best = i;
    }
    if (best == results.size()) continue;
    const std::string name = bench::run_name(plan, {.index = best});
    if (const int ranks = bench::copy_profiles(runs / name, folder); ranks > 0)
      print_text("profile of {}: {} of {} rank{}\n", name, folder, ranks, ranks == 1 ? "" : "s");
  }
}

int bench_parallel(const BenchParallelOptions& options) {
  auto interrupts = std::make_unique<BenchInterrupts>();
  const bench::ParallelOptions parallel = checked(options);
  const fs::path folder = fs::absolute(options.output).lexically_normal();
  std::vector<std::string> notes;
  const std::vector<ParallelWay> ways = all_ways(parallel, options.auto_rows, notes);
  for (const std::string& note : notes) print_error("note: {}\n", note);
  const BenchPlan plan = bench::parallel_plan(parallel, ways);
  BenchPart part(plan, folder, options.retry);
  const bool all = part.run_all(*interrupts);
  interrupts.reset();
  print_error("reading the traces of all runs\n");
  std::vector<ParallelResult> results = bench::parallel_results(parallel, ways, plan, part.log());
  bool ran = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    ran = ran || results[i].ran();
    if (!results[i].ran()) bench::add_plan(results[i], part.plan_of(i, results[i].result));
  }
  const std::vector<bench::BenchTable> tables = bench::parallel_tables(results);
  nlohmann::ordered_json json = bench::parallel_json(tables, results);
  json["plan"] = bench::plan_json(plan);
  write_bench(folder, "parallel", bench::parallel_document(tables, results),
              bench::parallel_csv(results), json);
  write_profiles(parallel, plan, results, part.log().runs());
  if (!all) {
    throw Error(ErrorKind::again, "stopped before all runs have ended",
                "the same command goes on and keeps those that have");
  }
  return ran ? 0 : 1;
}

void add_options(CLI::App& app, BenchParallelOptions& options) {
  bench::ParallelOptions& parallel = options.parallel;
  add_recipes(app, parallel.recipes)
      ->description(
          "Recipes, a layout each: YAML files, or names of those that `dstrain recipe "
          "list` lists.");
  app.add_option("--ranks", parallel.ranks, "Numbers of ranks.")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_in(1, 1048576));
  app.add_option(
         "--scaling", options.scaling,
         "weak: tokens of a rank stay; strong: tokens of a step stay. Default: weak,strong.")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"weak", "strong"}));
  app.add_option("--tokens", parallel.tokens,
                 "Of a step of strong scaling. Default: 65536, of images batch.global.")
      ->check(number_in(1, 1 << 30));
  app.add_option("--tokens-per-rank", parallel.tokens_per_rank,
                 "Of weak scaling. Default: those of strong scaling on the most ranks.")
      ->check(number_in(1, 1 << 30));
  app.add_option(
         "--auto", options.auto_rows,
         "Run so many rows of `plan --auto`, too, and its default layouts, once for recipes "
         "that differ in their layout alone.")
      ->check(number_in(1, 100));
  app.add_option("--steps", parallel.steps, "Steps that count. Default: 20.")
      ->check(number_in(2, 1 << 20));
  app.add_option("--warmup", parallel.warmup, "Steps before these. Default: 5.")
      ->check(number_in(1, 1 << 20));
  app.add_option("--repeat", parallel.repeat,
                 "Runs of each, by turns; figures are of the one of median step. Default: 1.")
      ->check(number_in(1, 1000));
  add_overrides(app, parallel.overrides);
  app.add_flag("--retry", options.retry, "Run again what has failed.");
  app.add_option("-o,--output", options.output,
                 "Folder of the tables and of the runs. Default: bench-parallel.");
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
  add_options(*app, *options);
  return {app, [options] { return bench_parallel(*options); }};
}

}  // namespace dstrain
