#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dstrain {

/// What a program prints to standard output within `seconds`; nothing where it fails. `error`:
/// its standard error, -1 for /dev/null.
[[nodiscard]] std::optional<std::string> output_of(const std::vector<std::string>& command,
                                                   double seconds, int error = -1);

}  // namespace dstrain
