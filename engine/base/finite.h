#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dstrain {

/// Index of the first value that is nan or infinite, or -1.
[[nodiscard]] inline std::int64_t first_non_finite(std::span<const float> values) {
  constexpr std::size_t kChunk = 4096;
  constexpr std::uint32_t kExponent = 0x7F800000;
  for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
    const auto chunk = values.subspan(begin, std::min(kChunk, values.size() - begin));
    std::uint32_t found = 0;  // without a branch, so that the loop becomes vector instructions
    for (const float x : chunk)
      found |=
          static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(x) & kExponent) == kExponent);
    if (found == 0) continue;
    const auto bad = std::ranges::find_if(chunk, [](float x) { return !std::isfinite(x); });
    return static_cast<std::int64_t>(begin) + (bad - chunk.begin());
  }
  return -1;
}

}  // namespace dstrain
