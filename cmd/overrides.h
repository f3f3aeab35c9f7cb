#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace dstrain {

/// --set, of every command that reads a recipe: "path.to.key=value", in the order given.
void add_overrides(CLI::App& app, std::vector<std::string>& overrides);

}  // namespace dstrain
