#pragma once

#include <filesystem>
#include <string>

#include "launcher/hosts/placement.h"

namespace dstrain::launcher {

/// Short for a person: relative when it lies below the present folder.
[[nodiscard]] std::string short_path(const std::filesystem::path& path);

/// "4 ranks on h1, h2": where they start, of many hosts the first and the last.
[[nodiscard]] std::string describe_start(const Placement& placement);

}  // namespace dstrain::launcher
