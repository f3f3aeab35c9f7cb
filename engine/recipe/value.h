#pragma once

#include <string>

#include "engine/recipe/describe.h"

namespace dstrain {

/// The value in a slot as YAML that the reader turns into the same value again.
[[nodiscard]] std::string yaml_value(const Slot& slot);

}  // namespace dstrain
