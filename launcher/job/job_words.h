#pragma once

#include <string>

#include "launcher/hosts/placement.h"

namespace dstrain::launcher {

/// "4 ranks on h1, h2": where they start, of many hosts the first and the last.
[[nodiscard]] std::string describe_start(const Placement& placement);

}  // namespace dstrain::launcher
