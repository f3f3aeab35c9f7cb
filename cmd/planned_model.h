#pragma once

#include "engine/base/gpu_limits.h"
#include "engine/models/trainable.h"
#include "engine/program/cost.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// The recipe without a folder of weights that is not there, which is a note on stderr: the name
/// says the sizes, too.
[[nodiscard]] Recipe with_known_sizes(Recipe recipe);

/// The model of a recipe by its sizes (with_known_sizes), without its weights, and what a
/// micro-batch of it costs on a device with such limits. Of the parts of its blocks that `splits`
/// names.
struct PlannedModel {
  Model model;
  ModelCost cost;
};
[[nodiscard]] PlannedModel planned_model(const Recipe& recipe, const Splits& splits = {},
                                         const GpuLimits& limits = kCpuLimits);

/// Error{usage} where phases do not follow one another (check_phases).
void check_planned_phases(const Recipe& recipe, const Splits& splits = {});

}  // namespace dstrain
