#pragma once

#include <algorithm>
#include <cstdint>

/// How many rows of logits are held at once; not for other layers.
namespace dstrain::ops {

struct LogitLimit {
  std::int64_t rows, bytes;
};
// On a GPU, in training; and without gradients, where a run holds them beside the memory of its
// CUDA graphs. On the CPU ATen's steps each copy.
inline constexpr LogitLimit kFewLogits{4096, std::int64_t{5} << 28};        // 1.25 GiB
inline constexpr LogitLimit kManyLogits{8192, std::int64_t{4} << 30};       // 4 GiB
inline constexpr LogitLimit kEvaluatedLogits{4096, std::int64_t{1} << 28};  // 256 MiB
inline constexpr LogitLimit kLogitsOnCpu{4096, std::int64_t{1} << 26};      // 64 MiB
inline constexpr std::int64_t kLogitRowGrain = 128;  // what a product's tiles divide

/// Rows of whole 16-byte words.
[[nodiscard]] constexpr std::int64_t padded_classes(std::int64_t classes) {
  return (classes + 7) / 8 * 8;
}

/// Rows of a chunk: as many as the limit allows, rather a divisor of all rows that is not much
/// less, so that all chunks have one shape.
[[nodiscard]] inline std::int64_t chunk_rows(std::int64_t rows, std::int64_t row_bytes,
                                             const LogitLimit& at_once) {
  const std::int64_t limit = std::clamp<std::int64_t>(at_once.bytes / row_bytes, 1, at_once.rows);
  if (rows <= limit) return std::max<std::int64_t>(rows, 1);
  const std::int64_t max = limit < kLogitRowGrain ? limit : limit / kLogitRowGrain * kLogitRowGrain;
  for (std::int64_t size = max; size >= kLogitRowGrain && 2 * size > max; size -= kLogitRowGrain)
    if (rows % size == 0) return size;
  return max;
}

}  // namespace dstrain::ops
