#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/base/philox.h"
#include "engine/kernels/conv/kernels.h"

/// How the work of a depthwise convolution is divided. A thread owns two channels and walks down a
/// strip of a few columns; a block has `lanes` threads beside each other for the channels of its
/// slab and `slots` strips. A function of the shape only, so that sums have one order.
namespace dstrain::kernels {

/// Walked along: the output going forward, the input going backward.
struct DepthwiseTiles {
  int columns;              ///< of a strip
  int lanes, slots;         ///< of a block
  int slabs;                ///< blocks beside each other along the channels
  int strips, segments;     ///< of an image; a segment is a part of the rows
  int rows;                 ///< of a segment
  std::int64_t items;       ///< samples * segments * strips
  int items_per_slot;       ///< one after the other
  std::int64_t row_blocks;  ///< blocks behind each other, which is rows of partial sums

  [[nodiscard]] DSTRAIN_HOST_DEVICE int threads() const { return lanes * slots; }
};

/// The strip of one item.
struct DepthwiseItem {
  std::int64_t sample;
  int first_column, first_row, end_row;
};

DSTRAIN_HOST_DEVICE DepthwiseItem depthwise_item(const DepthwiseTiles& tiles, std::int64_t item,
                                                 int height) {
  const auto index = static_cast<std::uint32_t>(item);
  const auto strip = static_cast<int>(index % static_cast<std::uint32_t>(tiles.strips));
  const std::uint32_t rest = index / static_cast<std::uint32_t>(tiles.strips);
  const auto segment = static_cast<int>(rest % static_cast<std::uint32_t>(tiles.segments));
  const int first = segment * tiles.rows, end = first + tiles.rows;
  return {rest / static_cast<std::uint32_t>(tiles.segments), strip * tiles.columns, first,
          end < height ? end : height};
}

constexpr int divided(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Of an image [samples, height, width, channels] in strips of `columns`, by blocks of `threads`.
constexpr DepthwiseTiles depthwise_tiles(std::int64_t samples, std::int64_t height,
                                         std::int64_t width, std::int64_t channels, int columns,
                                         int threads) {
  constexpr std::int64_t kThreads = 300'000;  // about three waves of an H200
  constexpr std::int64_t kBlockRows = 14;     // fewer rows would read too many twice
  constexpr std::int64_t kBlocks = 2112;      // more would only make more partial sums
  constexpr std::int64_t kFewestPartials = 64;
  const std::int64_t pairs = channels / 2;
  DepthwiseTiles t{};
  t.columns = columns;
  t.slabs = divided(pairs, 32);
  t.lanes = divided(pairs, t.slabs);
  t.slots = threads / t.lanes;
  t.strips = divided(width, columns);
  const std::int64_t walkers = std::max<std::int64_t>(1, samples * t.strips * pairs);
  const std::int64_t most = std::max<std::int64_t>(1, height / kBlockRows);
  t.rows = divided(height, std::clamp<std::int64_t>(divided(kThreads, walkers), 1, most));
  t.rows = std::max(2, t.rows + t.rows % 2);
  t.segments = std::max(1, divided(height, t.rows));
  t.items = samples * t.segments * t.strips;
  const std::int64_t blocks = std::max<std::int64_t>(1, divided(t.items, t.slots));
  t.items_per_slot = divided(blocks, std::max(kBlocks / t.slabs, kFewestPartials));
  t.row_blocks = divided(blocks, t.items_per_slot);
  return t;
}

constexpr int kDepthwiseThreads = 128;
constexpr int kStride2Columns = 4;  ///< of the output, for a strip

/// Columns of a strip with stride 1: seven where that leaves less of the last strip unused, since
/// widths of 224 pixels halved again and again are multiples of it. fp32 and kernels of 5 have
/// registers for four.
constexpr int depthwise_columns(const DepthwiseShape& s, DType dtype, std::int64_t width) {
  if (s.kernel == 5 || dtype == DType::f32) return 4;
  return divided(width, 7) * 9 <= divided(width, 4) * 6 ? 7 : 4;
}

constexpr DepthwiseTiles depthwise_forward_tiles(const DepthwiseShape& s, DType dtype) {
  const int columns = s.stride == 2 ? kStride2Columns : depthwise_columns(s, dtype, s.out_width);
  return depthwise_tiles(s.samples, s.out_height, s.out_width, s.channels, columns,
                         kDepthwiseThreads);
}
/// Of the input.
constexpr DepthwiseTiles depthwise_backward_tiles(const DepthwiseShape& s, DType dtype) {
  const int columns = s.stride == 2 ? 2 * kStride2Columns : depthwise_columns(s, dtype, s.width);
  return depthwise_tiles(s.samples, s.height, s.width, s.channels, columns, kDepthwiseThreads);
}

}  // namespace dstrain::kernels
