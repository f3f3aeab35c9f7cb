#pragma once

#include <algorithm>
#include <cstdint>

/// How many rows of logits are held at once; not for other layers.
namespace dstrain::ops {

inline constexpr std::int64_t kMostLogitRows = 4096;
inline constexpr std::int64_t kLogitsBytes = std::int64_t{5} << 28;     // 1.25 GiB, on a GPU
inline constexpr std::int64_t kLogitsBytesCpu = std::int64_t{1} << 26;  // ATen's steps each copy
inline constexpr std::int64_t kLogitRowGrain = 128;  // what a product's tiles divide

/// Rows of whole 16-byte words.
[[nodiscard]] constexpr std::int64_t padded_classes(std::int64_t classes) {
  return (classes + 7) / 8 * 8;
}

/// Rows of a chunk: as many as the limits allow, rather a divisor of all rows that is not much
/// less, so that all chunks have one shape.
[[nodiscard]] inline std::int64_t chunk_rows(std::int64_t rows, std::int64_t row_bytes, bool cuda) {
  const std::int64_t limit = std::clamp<std::int64_t>(
      (cuda ? kLogitsBytes : kLogitsBytesCpu) / row_bytes, 1, kMostLogitRows);
  if (rows <= limit) return std::max<std::int64_t>(rows, 1);
  const std::int64_t most =
      limit < kLogitRowGrain ? limit : limit / kLogitRowGrain * kLogitRowGrain;
  for (std::int64_t size = most; size >= kLogitRowGrain && 2 * size > most; size -= kLogitRowGrain)
    if (rows % size == 0) return size;
  return most;
}

}  // namespace dstrain::ops
