#pragma once

#include <filesystem>
#include <string>

#include "engine/base/gpu_limits.h"
#include "engine/recipe/load.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Makes precision.compute: auto what GPUs with these limits compute fastest: bf16 where they
/// multiply it, else fp16. Error{usage}, with the keys that help, where they lack the products of
/// the format that the recipe names, or where other keys need bf16. `device` names the GPUs.
void settle_compute(Recipe& recipe, const GpuLimits& limits, const std::string& device);

/// The same, where the word's origin is "auto".
void settle_compute(LoadedRecipe& loaded, const GpuLimits& limits, const std::string& device);

/// Writes the format that ranks have chosen over the `auto` of a recipe that resolved_yaml() wrote,
/// and leaves the origins of all values as they are.
void note_compute(const std::filesystem::path& resolved, ComputeType chosen);

}  // namespace dstrain
