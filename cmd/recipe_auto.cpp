#include "cmd/recipe_auto.h"

#include <utility>

#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "cmd/recipe_plan.h"
#include "engine/base/output.h"
#include "engine/recipe/compute.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/families.h"

namespace dstrain {

AutoSearch search_recipe(const std::string& recipe, const std::vector<std::string>& overrides,
                         const MachineOptions& machine, const AutoOptions& options) {
  LoadedRecipe loaded = load_recipe(recipe, overrides);
  for (const Diagnostic& warning : loaded.warnings) print_error("{}\n", format(warning));
  const Machine rates =
      plan_machine(machine, loaded.recipe.parallel.backend == Backend::gloo, options.ranks);
  settle_compute(loaded, rates.limits, rates.name);
  // Once, so that its note is printed once.
  const std::string weights = with_known_sizes(loaded.recipe).model.weights;
  LoadedRecipe sized = loaded;
  sized.recipe.model.weights = weights;
  require_sizes(sized, rates);
  const PlanSource source = {
      .recipe =
          [&](const std::vector<std::string>& settings) {
            Recipe own = with_settings(recipe, overrides, settings, "--auto").recipe;
            settle_compute(own, rates.limits, rates.name);
            return own;
          },
      .cost =
          [&](const Recipe& own) {
            Recipe known = own;
            known.model.weights = weights;
            const Mesh mesh(options.ranks, mesh_degrees(known.parallel, options.ranks));
            return planned_model(known, splits_of(known.parallel, mesh, 0)).cost;
          }};
  AutoSearch search{.plan = search_plan(loaded.recipe, source, rates, options),
                    .title = {.recipe = loaded.name, .model = loaded.recipe.model.name}};
  const ModelFamily* family = family_of(loaded.recipe.model.name);
  if (family == nullptr || family->modality == Modality::text)
    search.title.tokens = loaded.recipe.data.sequence;
  search.title.clips = frames_of(loaded.recipe) > 1;
  return search;
}

}  // namespace dstrain
