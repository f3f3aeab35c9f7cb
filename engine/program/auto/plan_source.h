#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/program/cost.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What the search asks of the layers above it.
struct PlanSource {
  /// The recipe with "path.to.key=value" set; Error{usage} where its rules refuse that.
  std::function<Recipe(const std::vector<std::string>& settings)> recipe;
  /// Cost of a micro-batch on one rank of such a recipe; Error{usage} where the model cannot be
  /// divided so.
  std::function<ModelCost(const Recipe& recipe)> cost;
};

}  // namespace dstrain
