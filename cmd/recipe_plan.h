#pragma once

#include <string>

#include "engine/program/plan_report.h"
#include "recipes/schema/load.h"

namespace dstrain {

/// As asked for; else what was measured for the device that this machine has, else the built-in
/// one.
[[nodiscard]] Machine plan_machine(const std::string& name, bool on_cpu);

/// A recipe's step with all that its plan goes by.
struct RecipePlan {
  ModelCost cost;
  Strategy strategy;
  PlanReport report;
};
/// Of one phase of the recipe.
[[nodiscard]] RecipePlan plan_recipe(const LoadedRecipe& loaded, int ranks, const Machine& machine,
                                     int phase = 0);

}  // namespace dstrain
