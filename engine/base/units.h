#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

using Bytes = std::int64_t;
using Flops = double;  ///< floating-point operations (a count, not a rate)

/// "1.50 GiB", "640 B": binary units for memory.
[[nodiscard]] std::string format_bytes(Bytes bytes);
/// "12.3k", "4.56M": decimal, for counts and rates.
[[nodiscard]] std::string format_count(double count);
/// "2h 05m", "3m 07s", "4.2 s", "18 ms".
[[nodiscard]] std::string format_duration(double seconds);

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace dstrain
