#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

/// Sizes that a kernel of a GPU takes: the multiples of `unit` up to `max`.
struct TakenSizes {
  std::int64_t unit = 1;
  std::int64_t max = 0;  ///< 0: no limit

  [[nodiscard]] constexpr bool has(std::int64_t size) const {
    return size > 0 && size % unit == 0 && (max == 0 || size <= max);
  }
  /// "a multiple of 8 up to 8192" or "at most 32".
  [[nodiscard]] std::string text() const;
  /// Those next to `size`, which is none of them: "8 or 16".
  [[nodiscard]] std::string nearest(std::int64_t size) const;
};

/// Error{internal} of the kernel, where `size` is none of them.
void require_taken(const TakenSizes& taken, std::int64_t size, std::string_view kernel);

}  // namespace dstrain
