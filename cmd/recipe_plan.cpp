#include "cmd/recipe_plan.h"

#include <utility>

#include "cmd/planned_model.h"
#include "engine/program/measured_machine.h"

namespace dstrain {

Machine plan_machine(const std::string& name, bool on_cpu) {
  const std::vector<MeasuredRates> measured = read_measured(measured_file());
  if (!name.empty()) return choose_machine(name, measured);
  const auto found = find_measured(measured, on_cpu ? "CPU" : installed_gpu());
  return found ? *found : on_cpu ? cpu() : h200();
}

RecipePlan plan_recipe(const LoadedRecipe& loaded, int ranks, const Machine& machine) {
  const Mesh mesh(ranks, mesh_degrees(loaded.recipe.parallel, ranks));
  ModelCost cost = planned_model(loaded.recipe, splits_of(loaded.recipe.parallel, mesh, 0)).cost;
  Strategy strategy = make_strategy(loaded.recipe, cost, ranks, machine);
  PlanReport report = make_plan(loaded.name, loaded.recipe, strategy, cost, machine);
  return {.cost = std::move(cost), .strategy = std::move(strategy), .report = std::move(report)};
}

}  // namespace dstrain
