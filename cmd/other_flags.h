#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dstrain {

/// What says here what an option of other launchers and training scripts says there, as a hint:
/// "--epochs" is `--set run.epochs=...`. Empty where nothing is known, or `command` has no such
/// option.
[[nodiscard]] std::string meaning_here(const std::string& option, const CLI::App& command);

}  // namespace dstrain
