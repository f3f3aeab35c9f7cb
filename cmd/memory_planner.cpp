#include "cmd/memory_planner.h"

#include <algorithm>
#include <utility>

#include "cmd/overrides.h"
#include "cmd/planned_model.h"
#include "cmd/recipe_plan.h"
#include "engine/program/recompute_choice.h"
#include "engine/recipe/axes.h"
#include "engine/recipe/phases.h"

namespace dstrain {

MemoryPlanner::MemoryPlanner(std::string recipe, std::vector<std::string> overrides, int ranks)
    : file_(std::move(recipe)), overrides_(std::move(overrides)), ranks_(ranks) {
  recipe_ = load_recipe(file_, overrides_).recipe;
  weights_ = with_known_sizes(recipe_).model.weights;
}

int MemoryPlanner::data_ranks() const {
  return static_cast<int>(ranks_ / ranks_per_sample(recipe_.parallel));
}

Recipe MemoryPlanner::recipe_with(const std::vector<std::string>& settings,
                                  const std::string& origin) const {
  return with_settings(file_, overrides_, settings, origin).recipe;
}

PlannedMemory MemoryPlanner::plan(const std::vector<std::string>& settings, const Machine& machine,
                                  const std::string& origin) const {
  LoadedRecipe loaded = with_settings(file_, overrides_, settings, origin);
  // Its note was printed once.
  loaded.recipe.model.weights = weights_;
  PlannedMemory max;
  for (int phase = 0; phase < num_phases(loaded.recipe); ++phase) {
    const PlanReport report = plan_recipe(loaded, ranks_, machine, phase).report;
    max.memory = std::max(max.memory, report.step.ledger.total());
    max.limit = report.machine.device_memory;
    max.host = std::max(max.host, report.step.ledger.host_total());
    max.step_s = std::max(max.step_s, report.step.step_s);
  }
  const double kept = loaded.recipe.memory.limit > 0 ? 0 : kMemoryReserve;
  max.usable = static_cast<Bytes>((1 - kept) * static_cast<double>(max.limit));
  return max;
}

}  // namespace dstrain
