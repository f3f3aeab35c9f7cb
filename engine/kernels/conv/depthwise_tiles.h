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

inline constexpr int kDepthwiseThreads = 128;
inline constexpr int kStride2Columns = 4;  ///< of the output, for a strip

/// Columns of a strip with stride 1: seven where all strips together read fewer columns, which is
/// so for widths of 224 pixels halved again and again, multiples of seven. fp32 has registers for
/// four, and so have kernels of five backward.
constexpr int depthwise_columns(const DepthwiseShape& s, DType dtype, std::int64_t width) {
  if (dtype == DType::f32) return 4;
  const int around = s.kernel - 1;
  return divided(width, 7) * (7 + around) <= divided(width, 4) * (4 + around) ? 7 : 4;
}

/// Blocks of a multiprocessor, by which registers are held down. `columns` of a strip's output
/// forward, of its input backward.
constexpr int depthwise_resident(bool fp32, int kernel, int stride, int columns) {
  const bool wide = stride == 1 && columns == 7;
  return fp32 ? 2 : kernel == 5 ? (wide ? 2 : 3) : wide ? 4 : 5;
}
constexpr int depthwise_backward_resident(bool fp32, int kernel, int stride, int columns) {
  return fp32 || kernel == 5 ? 2 : stride == 1 && columns == 4 ? 4 : 3;
}

/// Tiles of an image [samples, height, width, channels] in strips of `columns`: rows are divided,
/// and items given to blocks, so that the slowest multiprocessor has the fewest rows to walk, those
/// that neighbours walk, too, included. Blocks of one wave run at once, further ones begin as
/// others end.
constexpr DepthwiseTiles depthwise_tiles(std::int64_t samples, std::int64_t height,
                                         std::int64_t width, std::int64_t channels, int columns,
                                         int kernel, int resident) {
  constexpr std::int64_t kMultiprocessors = 132;  // of an H100 or H200
  constexpr std::int64_t kStartRows = 3;     // what an item takes before its first row, in rows
  constexpr std::int64_t kMaxBlocks = 2112;  // more would only make more partial sums
  constexpr std::int64_t kMaxEach = 8;
  DepthwiseTiles t{};
  const std::int64_t pairs = channels / 2;
  t.columns = columns;
  t.slabs = divided(pairs, 32);
  t.lanes = divided(pairs, t.slabs);
  t.slots = kDepthwiseThreads / t.lanes;
  t.strips = divided(width, columns);
  const std::int64_t wave = std::max<std::int64_t>(1, kMultiprocessors * resident / t.slabs),
                     max = std::max<std::int64_t>(wave, kMaxBlocks / t.slabs);
  double shortest = -1;
  for (std::int64_t parts = 1; parts == 1 || parts <= height / 4; ++parts) {
    const std::int64_t even = divided(height, parts),
                       rows = std::max<std::int64_t>(2, even + even % 2),
                       segments = std::max(1, divided(height, rows)),
                       items = samples * segments * t.strips,
                       all = std::max(1, divided(items, t.slots)), min = divided(all, max);
    for (std::int64_t each = min; each < min + kMaxEach; ++each) {
      const std::int64_t blocks = divided(all, each);
      // Where blocks follow one another, about a third of the last wave is idle.
      const double waves = blocks <= wave
                               ? 1
                               : static_cast<double>(blocks) / static_cast<double>(wave) + 0.3,
                   walked = waves * static_cast<double>(each * (rows + kernel - 1 + kStartRows));
      if (shortest >= 0 && walked >= shortest) continue;
      shortest = walked;
      t.rows = static_cast<int>(rows);
      t.segments = static_cast<int>(segments);
      t.items = items;
      t.items_per_slot = static_cast<int>(each);
      t.row_blocks = blocks;
    }
  }
  return t;
}

constexpr DepthwiseTiles depthwise_forward_tiles(const DepthwiseShape& s, DType dtype) {
  const int columns = s.stride == 2 ? kStride2Columns : depthwise_columns(s, dtype, s.out_width);
  return depthwise_tiles(s.samples, s.out_height, s.out_width, s.channels, columns, s.kernel,
                         depthwise_resident(dtype == DType::f32, s.kernel, s.stride, columns));
}
/// Tiles of the input.
constexpr DepthwiseTiles depthwise_backward_tiles(const DepthwiseShape& s, DType dtype) {
  const int columns = s.stride == 2   ? 2 * kStride2Columns
                      : s.kernel == 5 ? 4
                                      : depthwise_columns(s, dtype, s.width);
  return depthwise_tiles(
      s.samples, s.height, s.width, s.channels, columns, s.kernel,
      depthwise_backward_resident(dtype == DType::f32, s.kernel, s.stride, columns));
}

}  // namespace dstrain::kernels
