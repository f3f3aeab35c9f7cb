#pragma once

#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "launcher/job/launch.h"

namespace dstrain::launcher {

/// What LaunchOptions::files returns for a recipe: its resolved text, once it is known that mesh
/// and batch fit `world_size` ranks. Error{usage} with valid numbers when they do not.
[[nodiscard]] std::vector<RunFile> recipe_files(const LoadedRecipe& loaded, int world_size);

/// LaunchOptions::price of the recipe: what fewer ranks add to a step's micro-batches, since the
/// global batch stays.
[[nodiscard]] std::string price_of_ranks(const Recipe& recipe, int before, int now);

}  // namespace dstrain::launcher
