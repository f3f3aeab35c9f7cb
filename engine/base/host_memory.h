#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/error.h"

namespace dstrain {

/// First words of host_memory_error(), by which the launcher tells it from an error of a GPU.
inline constexpr std::string_view kHostOutOfMemory = "out of memory on the host";

/// The error of a failed allocation: bytes wanted (0: unknown), memory of this process, and its
/// limits. Error{internal}.
[[nodiscard]] Error host_memory_error(std::int64_t wanted_bytes);

/// Resident memory of this process; 0 where the system does not say.
[[nodiscard]] std::int64_t host_resident_bytes();

}  // namespace dstrain
