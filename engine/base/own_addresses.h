#pragma once

#include <string>
#include <vector>

namespace dstrain {

/// Numeric IPv4 addresses of this machine that others may reach, in the system's order, those of
/// bridges and tunnels last; 127.0.0.1 when there is no other.
[[nodiscard]] std::vector<std::string> own_addresses();

}  // namespace dstrain
