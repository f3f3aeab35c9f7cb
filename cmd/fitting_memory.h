#pragma once

#include "cmd/launch_job.h"
#include "engine/recipe/load.h"

namespace dstrain {

/// The recipe for so many ranks, asked of the engine library before any starts: Error{usage} where
/// a rank would not have the memory, with what fits. Under --fit with the fastest settings that
/// fit, whose origin is "--fit". `elsewhere`: ranks run on other hosts, whose cards --machine
/// names; without it they look at their memory themselves when they start.
[[nodiscard]] LoadedRecipe with_fitting_memory(LoadedRecipe loaded, const JobOptions& options,
                                               int ranks, bool elsewhere);

}  // namespace dstrain
