#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/error.h"

namespace dstrain {

/// How the message of host_memory_error() begins; the launcher tells it from a GPU's by this.
inline constexpr std::string_view kHostOutOfMemory = "out of memory on the host";

/// For an allocation that failed: how much was wanted (0: unknown), what this process has, and what
/// limits it. Error{internal}.
[[nodiscard]] Error host_memory_error(std::int64_t wanted_bytes);

}  // namespace dstrain
