#pragma once

#include <string>
#include <vector>

#include "engine/recipe/load.h"

namespace dstrain {

/// The recipe with the layout that `dstrain plan --auto` puts first for so many ranks, which is
/// printed. The origin of the keys that it sets is "--auto". Error{usage} where the search fails,
/// which has said why on standard error.
[[nodiscard]] LoadedRecipe with_auto_layout(const std::string& recipe,
                                            const std::vector<std::string>& overrides, int ranks);

}  // namespace dstrain
