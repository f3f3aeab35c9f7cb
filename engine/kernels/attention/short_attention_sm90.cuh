#pragma once

#include <cuda_pipeline.h>

#include "engine/kernels/attention/short_attention.cuh"
#include "engine/kernels/attention/wgmma.cuh"

/// What both directions of attention of short sequences share where they run by wgmma, for sm_90a.
/// A block holds one head's operands in shared memory; a warpgroup works on 64 rows at a time,
/// which are the left operands. While it takes exponentials of one chunk of scores, the products
/// with the chunk before run.
namespace dstrain::kernels::cuda {

inline constexpr int kThreads = 128, kWarps = 4;  ///< of a warpgroup
inline constexpr int kRows = 64;                  ///< of a block's product
inline constexpr int kChunk = 64;                 ///< scores of a row at a time

__host__ __device__ inline int rounded(int tokens, int to) { return (tokens + to - 1) / to * to; }

/// Where this lane's part of a tile lies, found out again: what was known before need not stay in
/// registers.
__device__ inline Lane lane_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return {thread % kWarp, thread / kWarp, thread % kWarp / 4, thread % 4 * 2};
}

/// Rows of a head in shared memory, as wgmma::operand describes them: eight rows of 64 elements are
/// a matrix of 128 bytes a row, those of 80 elements five matrices of 32 bytes a row next to each
/// other. A copy writes at once what lies next to each other both in memory and here; in matrices
/// of 16 bytes a row that would be 16 bytes. Eight rows are read without conflicts.
template <typename T, int kWidth>
struct Stored {
  std::uint32_t start;  ///< in shared memory, aligned to kMatrix bytes

  /// Bytes of a row of a matrix, of a matrix, and of eight rows.
  static constexpr int kMatrixRow = kWidth % 64 == 0 ? 128 : 32, kMatrix = 8 * kMatrixRow,
                       kEight = 16 * kWidth;

  /// Size of so many rows, a multiple of 16.
  __host__ __device__ static constexpr int bytes(int rows) { return 2 * rows * kWidth; }

  /// Those from `row` on, a multiple of 8.
  [[nodiscard]] __device__ Stored from(int row) const { return {start + row / 8 * kEight}; }

  /// Where a row's eight elements lie.
  [[nodiscard]] __device__ std::uint32_t pack(int row, int number) const {
    constexpr int kPieces = kMatrixRow / 16;
    const int swizzle = kPieces == 8 ? row % 8 : row % 8 / 4;
    return start + row / 8 * kEight + number / kPieces * kMatrix + row % 8 * kMatrixRow +
           16 * (number % kPieces ^ swizzle);
  }
  [[nodiscard]] __device__ uint4 load(int row, int number) const {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(pack(row, number))
                 : "memory");
    return x;
  }

  /// Rows from `row` on as right operand: as columns of a result, 16 elements of each at a time, or
  /// summed over.
  [[nodiscard]] __device__ std::uint64_t operand(int row) const {
    return wgmma::operand<kMatrixRow>(start + row / 8 * kEight, kMatrix, kEight);
  }
  /// Bytes of an operand to the `step`-th 16 elements of its columns.
  [[nodiscard]] static constexpr int further(int step) {
    constexpr int kSteps = kMatrixRow / 32;
    return step / kSteps * kMatrix + step % kSteps * 32;
  }

  /// Copies `rows` rows from `first` on, zeros behind the last token; by kThreads threads, to be
  /// waited for.
  template <int kThreads>
  __device__ void fetch(const Head<T>& head, int first, int rows, int tokens, int thread) const {
    constexpr int kPacks = kWidth / kPack, kAtOnce = kThreads / 2;  // rows
    int places[kPacks / 2], offsets[kPacks / 2];
    std::uint32_t addresses[kPacks / 2];
#pragma unroll
    for (int i = 0; i < kPacks / 2; ++i) {
      const int number = thread + i * kThreads;
      places[i] = number / kPacks;
      const int column = number - places[i] * kPacks;
      offsets[i] = places[i] * static_cast<int>(head.stride) + column * kPack;
      addresses[i] = pack(places[i], column);
    }
    const T* from = head.rows + first * head.stride;
    int shift = 0;
#pragma unroll 1
    for (int row = 0; row < rows; row += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kPacks / 2; ++i) {
        const bool is_token = first + row + places[i] < tokens;
        if (row + places[i] < rows)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(addresses[i] + shift),
                       "l"(is_token ? from + offsets[i] : head.rows), "r"(is_token ? 16 : 0)
                       : "memory");
      }
      from += kAtOnce * head.stride;
      shift += kAtOnce / 8 * kEight;
    }
  }

  /// A warp's 16 rows as left operands.
  __device__ void to(Left (&left)[kWidth / kTile]) const {
    const int lane = lane_again().index;
#pragma unroll
    for (int k = 0; k < kWidth / kTile; ++k)
      load_matrices<false>(left[k].value, pack(lane % 16, 2 * k + lane / 16));
  }
};

/// scores [64, 8 kTiles] = rows * (8 kTiles rows of `stored` from `row` on)^T.
template <typename T, int kWidth, int kTiles>
__device__ void multiply_by_rows(float (&scores)[kTiles][4], const Left (&rows)[kWidth / kTile],
                                 const Stored<T, kWidth>& stored, int row) {
  const std::uint64_t operand = stored.operand(row);
#pragma unroll
  for (int k = 0; k < kWidth / kTile; ++k)
    wgmma::multiply<T, false>(scores, rows[k], wgmma::moved(operand, Stored<T, kWidth>::further(k)),
                              k > 0);
}

/// Four lanes with two columns of four tiles each: afterwards lane i of them has all of tile i.
__device__ inline uint4 turn(const std::uint32_t (&x)[4], int lane) {
  const bool odd = lane % 2 == 1, high = lane % 4 >= 2;
  const std::uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1),
                      b = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 1);
  const uint2 first = odd ? uint2{a, x[1]} : uint2{x[0], a},
              second = odd ? uint2{b, x[3]} : uint2{x[2], b};
  const std::uint32_t c = __shfl_xor_sync(0xffffffffu, high ? first.x : second.x, 2),
                      d = __shfl_xor_sync(0xffffffffu, high ? first.y : second.y, 2);
  return high ? uint4{c, d, second.x, second.y} : uint4{first.x, first.y, c, d};
}

/// Sums times the scale to the rows of this warp from `first` on: pairs of columns are exchanged
/// among the four lanes of a row so that each stores 16 bytes at a time, of the last two tiles 8.
template <typename T, int kTiles>
__device__ void store_rows(const Head<T>& head, const float (&sums)[kTiles][4], float low_scale,
                           float high_scale, int first, int tokens) {
  static_assert(kTiles % 4 == 0 || kTiles % 4 == 2);
  const Lane lane = lane_again();
  const int part = lane.index % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + lane.row + 8 * i;
    const float scale = i == 0 ? low_scale : high_scale;
    T* to = head.rows + row * head.stride;
    const auto pair = [&](int n) {
      return pack_pair<T>(sums[n][2 * i] * scale, sums[n][2 * i + 1] * scale);
    };
#pragma unroll
    for (int n = 0; n + 4 <= kTiles; n += 4) {
      const uint4 words = turn({pair(n), pair(n + 1), pair(n + 2), pair(n + 3)}, lane.index);
      if (row < tokens) *reinterpret_cast<uint4*>(to + (n + part) * 8) = words;
    }
    if constexpr (kTiles % 4 == 2) {
      const std::uint32_t x = pair(kTiles - 2), y = pair(kTiles - 1);
      const std::uint32_t mine = part % 2 == 0 ? x : y,
                          other = __shfl_xor_sync(0xffffffffu, part % 2 == 0 ? y : x, 1);
      if (row < tokens)
        *reinterpret_cast<uint2*>(to + (kTiles - 2 + part % 2) * 8 + part / 2 * 4) =
            part % 2 == 0 ? uint2{mine, other} : uint2{other, mine};
    }
  }
}

/// Columns 8 n to 8 n + 15 of sums as left operand.
template <typename T, int kCount>
__device__ Left left_of(const float (&sums)[kCount][4], int n) {
  return {{pack_pair<T>(sums[n][0], sums[n][1]), pack_pair<T>(sums[n][2], sums[n][3]),
           pack_pair<T>(sums[n + 1][0], sums[n + 1][1]),
           pack_pair<T>(sums[n + 1][2], sums[n + 1][3])}};
}

/// All columns of 64 rows: whole chunks, then 16 at a time. `work` starts the products for the
/// scores of a chunk, weighs them, and adds the products with these weights, which run while it
/// weighs the next ones.
template <typename Work>
__device__ void in_chunks(Work& work, int tokens) {
  const int whole = tokens / kChunk * kChunk, end = rounded(tokens, kTile);
  typename Work::template ScoresOf<kTile> rest;
  typename Work::template WeightsOf<kTile> rest_weights;
  int column = 0;
  if (whole > 0) {
    typename Work::template ScoresOf<kChunk> scores;
    typename Work::template WeightsOf<kChunk> weights;
    work.start(scores, 0);
    work.template weigh<0>(weights, scores, 0);
    for (; column + kChunk < whole; column += kChunk) {
      work.start(scores, column + kChunk);
      work.add(weights, column);
      work.template weigh<1>(weights, scores, column + kChunk);
    }
    if (whole < end) {
      work.start(rest, whole);
      work.add(weights, column);
      work.template weigh<1>(rest_weights, rest, whole);
    } else {
      work.add(weights, column);
    }
    column = whole;
  } else {
    work.start(rest, 0);
    work.template weigh<0>(rest_weights, rest, 0);
  }
  for (; column < end; column += kTile) {
    work.add(rest_weights, column);
    if (column + kTile < end) {
      work.start(rest, column + kTile);
      work.template weigh<0>(rest_weights, rest, column + kTile);
    }
  }
}

}  // namespace dstrain::kernels::cuda
