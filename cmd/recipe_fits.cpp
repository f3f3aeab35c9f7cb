#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/fit_proposals.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_plan.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/program/known_gpus.h"
#include "engine/program/measured_machine.h"
#include "engine/recipe/axes.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

struct FitsOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool gpus = false, memory = false;
  std::string machine;
};

/// The fewest ranks that have all axes of the recipe.
int min_ranks(const ParallelConfig& parallel) {
  const Degrees given = given_degrees(parallel);
  std::int64_t data = product(given, kDataAxes);
  if (parallel.zero.stage > 0) {
    for (const int divisor : {parallel.zero.shard, parallel.zero.second_shard})
      data = std::lcm(data, std::int64_t{std::max(divisor, 1)});
  }
  const std::int64_t others = ranks_per_sample(parallel), max = std::numeric_limits<int>::max();
  return static_cast<int>(others > max / data ? max : others * data);
}

int check_fits(const FitsOptions& options) {
  LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const int ranks = options.ranks > 0 ? options.ranks : min_ranks(loaded.recipe.parallel);
  require_fit(std::move(loaded), ranks, options.gpus ? std::optional(h200()) : std::nullopt);
  return 0;
}

/// One JSON object for `launch`, whatever comes out.
int check_memory(const FitsOptions& options) {
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const bool on_cpu = loaded.recipe.parallel.backend == Backend::gloo;
  const std::string gpu = installed_gpu();
  const bool known = on_cpu || !options.machine.empty() || find_gpu(gpu) != nullptr ||
                     find_rates(read_measured(measured_file()), gpu);
  Machine machine = h200();
  try {
    if (known) machine = plan_machine({.name = options.machine}, on_cpu, options.ranks);
    if (machine.limits.are_of_gpu() && (known || !gpu.empty()))
      require_fit(loaded, options.ranks, machine);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) throw;
    print_text(json_text(nlohmann::json{{"refused", error.what()}, {"hint", error.hint()}}) + "\n");
    return 0;
  }
  if (!known) {
    const std::string unknown = gpu.empty()
                                    ? "no GPU is seen here"
                                    : "the rates of this machine's " + gpu + " are not known";
    print_text(json_text(nlohmann::json{{"unknown", unknown}}) + "\n");
    return 0;
  }
  const FitReport report = look_for_fit(options.recipe, options.overrides, options.ranks, machine);
  nlohmann::json answer = {{"fits", report.fits()},
                           {"misfit", misfit_text(report)},
                           {"proposals", proposals_text(report)},
                           {"settings", nlohmann::json::array()}};
  if (!report.proposals.empty()) {
    answer["settings"] = report.proposals.front().settings;
    answer["fitting_step_s"] = report.proposals.front().step_s;
    answer["bytes"] = report.proposals.front().memory;
  }
  print_text(json_text(answer) + "\n");
  return 0;
}

}  // namespace

Command add_recipe_fits(CLI::App& root) {
  auto options = std::make_shared<FitsOptions>();
  CLI::App* app = root.add_subcommand(
      "fits", "Refuse what the ranks of a job of this recipe would; say nothing otherwise.");
  app->add_option("recipe", options->recipe, "Recipe file (YAML).")->required();
  app->add_option("--ranks", options->ranks,
                  "Ranks in the world. Default: the fewest that the recipe's axes need.")
      ->check(number_in(1, 1 << 20));
  add_overrides(*app, options->overrides);
  app->add_flag("--gpus", options->gpus,
                "The ranks have GPUs, which do not take all sizes. Default: only if the recipe's "
                "backend says so; else that is a warning.");
  CLI::Option* memory = app->add_flag(
      "--memory", options->memory,
      "Say as JSON whether it fits the memory of a rank, and which settings make it fit.");
  app->add_option("--machine", options->machine, "As of plan.")->needs(memory);
  return {app,
          [options] { return options->memory ? check_memory(*options) : check_fits(*options); }};
}

}  // namespace dstrain
