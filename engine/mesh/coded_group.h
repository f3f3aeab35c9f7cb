#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/mesh/shard.h"

/// Sizes of numbers that travel between ranks as codes (engine/kernels/wire): what a plan needs of
/// them, without LibTorch.
namespace dstrain {

/// int8: whole numbers up to 127 in magnitude. fp8: e4m3, up to 448. int4: up to 7, two to a byte,
/// the first in the lower half.
enum class CodeFormat { int8, fp8, int4 };

/// Elements that share a scale. Tensors and shards start on it, so no block has elements of two of
/// either.
inline constexpr std::int64_t kCodeBlock = kFlatAlignment;

/// The codes of `elements` (a multiple of kCodeBlock) without their scales.
[[nodiscard]] constexpr std::int64_t code_bytes(CodeFormat format, std::int64_t elements) {
  return format == CodeFormat::int4 ? elements / 2 : elements;
}
/// The codes, then a bf16 scale for each block, filled up to a multiple of 16.
[[nodiscard]] constexpr std::int64_t coded_bytes(CodeFormat format, std::int64_t elements) {
  return (code_bytes(format, elements) + elements / kCodeBlock * 2 + 15) / 16 * 16;
}

/// A flat group of which the first `quantized` elements travel as codes and the others (norms,
/// biases) as they are. A message for a shard is [codes and scales of coded() elements, plain()
/// elements]: as long for each shard, since collectives have equal parts, though most shards need
/// one of both only. Codes of elements beyond the prefix are passed over.
struct CodedGroup {
  std::int64_t elements = 0;   ///< of the whole, padded: a multiple of shards * kFlatAlignment
  int shards = 1;              ///< ranks of the shard axis
  std::int64_t quantized = 0;  ///< a multiple of kCodeBlock, at most `elements`
  CodeFormat format = CodeFormat::int8;

  bool operator==(const CodedGroup&) const = default;

  [[nodiscard]] constexpr std::int64_t shard_size() const { return elements / shards; }
  [[nodiscard]] constexpr std::int64_t coded() const { return std::min(quantized, shard_size()); }
  [[nodiscard]] constexpr std::int64_t plain() const {
    return std::min(elements - quantized, shard_size());
  }
  /// The elements of `shard`, counted from its start, that travel as they are.
  [[nodiscard]] constexpr Range plain_of(int shard) const {
    const std::int64_t first = quantized - shard * shard_size();
    return {std::clamp<std::int64_t>(first, 0, shard_size()), shard_size()};
  }

  /// `width`: bytes of a plain element.
  [[nodiscard]] constexpr std::int64_t message_bytes(int width) const {
    return coded_bytes(format, coded()) + plain() * width;
  }
  /// Scratch of all_gather_quantized: the messages of all shards. `width`: of the slot's elements.
  [[nodiscard]] constexpr std::int64_t gather_scratch_bytes(int width) const {
    return quantized == 0 ? 0 : shards * message_bytes(width);
  }
  /// Scratch of reduce_scatter_quantized with inner groups of `degree` ranks: a message to and one
  /// from each rank of the outer group.
  [[nodiscard]] constexpr std::int64_t reduce_scratch_bytes(int degree) const {
    return degree == shards ? 0 : 2 * (shards / degree) * message_bytes(4);
  }
};

}  // namespace dstrain
