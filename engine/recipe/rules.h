#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/diagnostics.h"
#include "engine/recipe/inactive.h"
#include "engine/recipe/reader.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// The fields that change nothing in this recipe.
[[nodiscard]] std::vector<Inactive> inactive_fields(const Recipe& recipe);

/// Checks everything that needs more than one field. A rule is left out when a field that it reads
/// was refused.
void check_rules(const Recipe& recipe, const YamlReader& reader, Diagnostics& diagnostics);

}  // namespace dstrain
