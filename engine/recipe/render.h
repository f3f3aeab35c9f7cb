#pragma once

#include <string>
#include <vector>

#include "engine/recipe/load.h"

namespace dstrain {

/// REFERENCE.md: every key with type, default, limits and meaning.
[[nodiscard]] std::string reference_markdown();
/// Every key by its path, "parallel.zero.stage"; N stands for an item of a list.
[[nodiscard]] std::vector<std::string> recipe_keys();
/// JSON schema (draft 7) of a recipe, by which editors complete and check.
[[nodiscard]] std::string json_schema();
/// {"file", "recipe": values by section, "origins": path -> where the value came from}.
[[nodiscard]] std::string recipe_json(const LoadedRecipe& loaded);

}  // namespace dstrain
