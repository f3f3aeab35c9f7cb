#pragma once

#include "engine/models/trainable.h"
#include "engine/program/cost.h"
#include "recipes/schema/recipe.h"

namespace dstrain {

/// The model of a recipe by its sizes, without its weights, and what a micro-batch of it costs. A
/// folder of weights that is not there is a note on stderr: the name says the sizes, too. Of the
/// parts of its blocks that `splits` names.
struct PlannedModel {
  Model model;
  ModelCost cost;
};
[[nodiscard]] PlannedModel planned_model(Recipe recipe, const Splits& splits = {});

}  // namespace dstrain
