#pragma once

#include <string>
#include <vector>

#include "cmd/launch_job.h"
#include "engine/recipe/load.h"

namespace dstrain {

/// The recipe for so many ranks, asked of the engine library before any starts: Error{usage} where
/// a rank would not have the memory, with what fits. Under --fit with the fastest settings that
/// fit, whose origin is "--fit". `elsewhere`: ranks run on other hosts, whose cards --machine
/// names; without it they look at their memory themselves when they start.
[[nodiscard]] LoadedRecipe with_fitting_memory(LoadedRecipe loaded, const JobOptions& options,
                                               int ranks, bool elsewhere);

/// The recipe with settings put after `overrides`; `origin` says where they come from.
[[nodiscard]] LoadedRecipe with_settings(const std::string& recipe,
                                         std::vector<std::string> overrides,
                                         const std::vector<std::string>& settings,
                                         const std::string& origin);

}  // namespace dstrain
