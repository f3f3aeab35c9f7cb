#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace dstrain {

/// First words of host_memory_error(), by which the launcher tells it from an error of a GPU.
inline constexpr std::string_view kHostOutOfMemory = "out of memory on the host";
/// First words of an error of a GPU's memory, which every rank may have with figures of its own.
inline constexpr std::string_view kDeviceOutOfMemory = "CUDA out of memory";

/// The error of a failed allocation: bytes wanted (0: unknown), memory of this process, and its
/// limits. Error{internal}.
[[nodiscard]] Error host_memory_error(std::int64_t wanted_bytes);

/// Resident memory of this process, now and at its peak; 0 where the system does not say.
[[nodiscard]] std::int64_t host_resident_bytes();
[[nodiscard]] std::int64_t host_peak_bytes();

/// Host memory that this process can still take, and what sets that bound.
struct UsableMemory {
  std::int64_t bytes = 0;
  std::string bound;  ///< "available on this machine"; reads behind "4.00 GiB are"
};

/// The least of: MemAvailable; for this process's control group and those above it (v1 or v2) the
/// limit less what is used, file cache not counted, as the kernel gives that up first; the limit of
/// address space. The most an int64 holds where the system says none of these. RLIMIT_MEMLOCK has
/// no part in it: the GPU's driver locks pages beside it.
[[nodiscard]] UsableMemory usable_host_memory(const std::filesystem::path& proc = "/proc",
                                              const std::filesystem::path& sys = "/sys");

}  // namespace dstrain
