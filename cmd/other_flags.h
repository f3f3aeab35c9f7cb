#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dstrain {

/// What to give instead of an option that `command` does not have, as a hint: what says here what
/// options of other launchers and training scripts say there ("--epochs" is `--set
/// run.epochs=...`), else the nearest option, else the key of the recipe. Empty: nothing is known.
[[nodiscard]] std::string meaning_here(const std::string& option, const CLI::App& command);

}  // namespace dstrain
