#pragma once

#include <type_traits>

#include "engine/base/philox.h"
#include "engine/kernels/activation/drop_draw.h"
#include "engine/kernels/device.cuh"
#include "engine/kernels/gpu.h"
#include "engine/kernels/linear/low_rank.h"
#include "engine/kernels/tensor_cores.cuh"

/// What the kernels of low-rank terms share: a launch's parts in a block, and their masks.
namespace dstrain::kernels::cuda {

inline constexpr int kHalf = kTile / 2;
inline constexpr int kSpan = 4 * kPack;  ///< columns that a warp has at once
static_assert(kPack == DropDraw::kElements && kTile == kLowRankTile);

struct BlockPart {
  std::uint64_t key, wide_packs, first_pack;  ///< packs of a whole row, and before x's first column
  const std::int32_t* rows;
  std::uint32_t dropped;  ///< DropDraw::dropped twice, as two fp16 numbers; 0: nothing is
  float factor;
  int first_tile, end_tile;  ///< of tiles of `kRows` rows of all a
};

/// A launch's parts as a block uses them; tiles of `kRows` columns of u, of which none has two
/// parts.
template <int kRows>
struct BlockParts {
  BlockPart part[kMaxLowRankParts];
  int column[kMaxLowRank / kHalf];        ///< of u where a tile begins
  int count[kMaxLowRank / kHalf];         ///< columns of it
  const void* rows[kMaxLowRank / kHalf];  ///< of a that make it
  int tiles;

  /// By all threads of the block, which waits.
  template <typename T>
  __device__ void fill(const LowRankParts& parts, std::int64_t columns_of_x) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < parts.count) part[thread] = made(parts, thread, columns_of_x);
    if (thread == kWarp) {
      tiles = 0;
      for (int p = 0; p < parts.count; ++p) {
        for (int row = 0; row < parts.part[p].rank; row += kRows, ++tiles) {
          column[tiles] = parts.part[p].column + row;
          count[tiles] = min(parts.part[p].rank - row, kRows);
          rows[tiles] = static_cast<const T*>(parts.part[p].a) + row * columns_of_x;
        }
      }
    }
    __syncthreads();
  }

 private:
  __device__ static BlockPart made(const LowRankParts& parts, int p, std::int64_t columns) {
    const LowRankPart& from = parts.part[p];
    const auto packs_of = [](std::int64_t size) {
      return static_cast<std::uint64_t>(size / kPack);
    };
    BlockPart to = {.wide_packs = packs_of(from.whole_columns == 0 ? columns : from.whole_columns),
                    .first_pack = packs_of(from.first_column),
                    .rows = from.rows,
                    .factor = 1};
    if (from.share > 0) {
      const DropDraw draw = DropDraw::of(from.share);
      to.key = dropout_key(static_cast<std::uint64_t>(*from.seed), from.place);
      to.dropped = draw.dropped * 0x10001u;
      to.factor = draw.factor;
    }
    for (int before = 0; before < p; ++before)
      to.first_tile += (parts.part[before].rank + kRows - 1) / kRows;
    to.end_tile = to.first_tile + (from.rank + kRows - 1) / kRows;
    return to;
  }
};

/// All bits of the elements that stay of the pack at `column` of `row`.
__device__ __forceinline__ uint4 kept_of(const BlockPart& part, std::int64_t row,
                                         std::int64_t column) {
  const std::int64_t whole_row = part.rows == nullptr ? row : part.rows[row];
  const std::uint64_t counter = static_cast<std::uint64_t>(whole_row) * part.wide_packs +
                                part.first_pack + static_cast<std::uint64_t>(column / kPack);
  const Philox random = DropDraw::words_of(part.key, counter);
  uint4 kept;
  auto* words = reinterpret_cast<std::uint32_t*>(&kept);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = __hgeu2_mask(__habs2(reinterpret_cast<const __half2&>(random.word[i])),
                            reinterpret_cast<const __half2&>(part.dropped));
  return kept;
}

__device__ __forceinline__ uint4 masked(const uint4& x, const uint4& kept) {
  return {x.x & kept.x, x.y & kept.y, x.z & kept.z, x.w & kept.w};
}

template <typename T>
__device__ __forceinline__ uint4 pack_at(const void* rows, std::int64_t row, std::int64_t stride,
                                         std::int64_t column) {
  return *reinterpret_cast<const uint4*>(static_cast<const T*>(rows) + row * stride + column);
}

/// Keeps a lane's pairs of tile `t` of a as right operands of du a, one for each pair of its pack
/// at `column`; zeros where that is not `inside`.
template <typename T>
__device__ __forceinline__ void keep_right_of_a(const BlockParts<kTile>& block, int t,
                                                const Lane& lane, std::int64_t columns,
                                                std::int64_t column, bool inside,
                                                uint2 (&to)[4][kWarp]) {
  uint4 low{}, high{};
  if (inside) low = pack_at<T>(block.rows[t], lane.row, columns, column);
  if (inside && block.count[t] > kHalf)
    high = pack_at<T>(block.rows[t], lane.row + kHalf, columns, column);
  to[0][lane.index] = {transposed(low.x), transposed(high.x)};
  to[1][lane.index] = {transposed(low.y), transposed(high.y)};
  to[2][lane.index] = {transposed(low.z), transposed(high.z)};
  to[3][lane.index] = {transposed(low.w), transposed(high.w)};
}

/// Writes the sums of tile `t` of a part to its rows of `to`, [splits, rank, columns].
__device__ __forceinline__ void write_sums(const BlockParts<kTile>& block, int t, const Lane& lane,
                                           const LowRankPart& part, float scale,
                                           std::int64_t columns, std::int64_t column,
                                           const float (&sums)[4][4], float* to) {
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    if (lane.row + below * kHalf >= block.count[t]) break;
    const std::int64_t row = block.column[t] - part.column + lane.row + below * kHalf;
    float* const at = to + (blockIdx.y * part.rank + row) * columns + column;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      *reinterpret_cast<float2*>(at + 2 * j) = {scale * sums[j][2 * below],
                                                scale * sums[j][2 * below + 1]};
  }
}

/// Calls `body` with the tiles of a launch, 1 to 4, as a constant.
template <typename Body>
void with_tiles(const LowRankParts& parts, const Body& body) {
  const int tiles = parts.tiles(kTile);
  if (tiles == 1) return body(std::integral_constant<int, 1>{});
  if (tiles == 2) return body(std::integral_constant<int, 2>{});
  tiles == 3 ? body(std::integral_constant<int, 3>{}) : body(std::integral_constant<int, 4>{});
}

}  // namespace dstrain::kernels::cuda
