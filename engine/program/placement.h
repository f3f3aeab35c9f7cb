#pragma once

#include <optional>
#include <string>

#include "engine/program/program.h"
#include "engine/program/recompute_choice.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What was put on the host, and why so much.
struct PlacementReport {
  std::int64_t offloaded = 0;  ///< elements whose states rest on the host, on this rank
  std::int64_t streamed = 0;   ///< of them, updated by the device
  std::int64_t elements = 0;   ///< all whose states the rank holds
  double seconds = 0;          ///< of link, cores or host memory to update what was put there
};
[[nodiscard]] std::string describe(const PlacementReport& report);

/// Puts states and parameters where memory.offload says. Of the states, groups of the last blocks
/// go first: those of the first ones are needed first in the next step. With `share` 0, so many go
/// that the training program fits into the memory limit (none: all), every block recomputed where
/// blocks may be. Under `update: auto` groups are divided
/// between device and CPU so that both end at about the same time by `machine`'s rates.
/// Error{usage} where parameters are offloaded that rest whole on several data ranks.
PlacementReport place_states(Layout& layout, const ModelCost& cost, const Recipe& recipe,
                             const ProgramOptions& options, const Machine& machine);

}  // namespace dstrain
