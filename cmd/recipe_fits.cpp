#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_plan.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

struct FitsOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  int ranks = 0;
};

/// The fewest ranks that have all axes of the recipe.
int least_ranks(const ParallelConfig& parallel) {
  int data = parallel.expert;
  if (parallel.zero.stage > 0) {
    for (const int divisor : {parallel.zero.shard, parallel.zero.second_shard})
      data = std::lcm(data, divisor > 0 ? divisor : 1);
  }
  return parallel.pipeline * parallel.sequence * parallel.tensor * data;
}

int check_fits(const FitsOptions& options) {
  LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  const int ranks = options.ranks > 0 ? options.ranks : least_ranks(loaded.recipe.parallel);
  require_fit(std::move(loaded), ranks);
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
  return {app, [options] { return check_fits(*options); }};
}

}  // namespace dstrain
