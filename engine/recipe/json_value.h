#pragma once

#include <nlohmann/json.hpp>

#include "engine/recipe/describe.h"

namespace dstrain {

/// The value in a slot as JSON; enumerations by their spelling.
[[nodiscard]] nlohmann::ordered_json json_value(const Slot& slot);

}  // namespace dstrain
