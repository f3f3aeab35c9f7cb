#pragma once

#include <chrono>
#include <cstdint>

namespace dstrain {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Nanoseconds since 1970 by this host's clock.
[[nodiscard]] inline std::int64_t system_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Seconds since 1970 by this host's clock.
[[nodiscard]] inline double unix_time_s() { return static_cast<double>(system_time_ns()) * 1e-9; }

}  // namespace dstrain
