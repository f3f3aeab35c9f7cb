#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/recipe/load.h"

namespace dstrain {

/// --set, of every command that reads a recipe: "path.to.key=value", in the order given.
void add_overrides(CLI::App& app, std::vector<std::string>& overrides);

/// The recipe with settings put after `overrides`; `origin` says where they come from.
[[nodiscard]] LoadedRecipe with_settings(const std::string& recipe,
                                         std::vector<std::string> overrides,
                                         const std::vector<std::string>& settings,
                                         const std::string& origin);

}  // namespace dstrain
