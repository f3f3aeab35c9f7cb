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
/// Elements from one matrix of 8 rows by 16 bytes to the next: the first 64 are its own; 8 more
/// keep neighbouring 16 bytes of a row in different banks.
inline constexpr int kMatrix = 72;
inline constexpr int kMostTokens = 320;  ///< as short_attention_max_tokens

__host__ __device__ inline int rounded(int tokens, int to) { return (tokens + to - 1) / to * to; }

/// Rows of a head in shared memory, as matrices of 8 rows by 16 bytes: those of 8 rows next to each
/// other. Any eight rows of such a matrix lie in different banks.
template <typename T, int kWidth>
struct Stored {
  T* data;

  static constexpr int kEight = kWidth / kPack * kMatrix;  ///< elements of eight rows
  static constexpr int kMatrixBytes = 2 * kMatrix, kEightBytes = 2 * kEight;

  /// Of so many rows, rounded up to 16.
  __host__ __device__ static constexpr int elements(int tokens) {
    return rounded(tokens, kTile) / 8 * kEight;
  }

  /// Their first 64 or 16 as columns of a result, and as what is summed over.
  [[nodiscard]] __device__ std::uint64_t columns() const {
    return wgmma::operand(data, kMatrixBytes, kEightBytes);
  }
  [[nodiscard]] __device__ std::uint64_t summed() const {
    return wgmma::operand(data, kEightBytes, kMatrixBytes);
  }

  /// Copies `rows` rows from `first` on, zeros behind the last token; by kThreads threads, to be
  /// waited for.
  template <int kThreads>
  __device__ void fetch(const Head<T>& head, int first, int rows, int tokens, int thread) const {
    constexpr int kPacks = kWidth / kPack, kAtOnce = kThreads / 2;  // rows
    int places[kPacks / 2], offsets[kPacks / 2], matrices[kPacks / 2];
#pragma unroll
    for (int i = 0; i < kPacks / 2; ++i) {
      const int pack = thread + i * kThreads;
      places[i] = pack / kPacks;
      const int column = pack - places[i] * kPacks;
      offsets[i] = places[i] * static_cast<int>(head.stride) + column * kPack;
      matrices[i] = 2 * (places[i] / 8 * kEight + column * kMatrix + places[i] % 8 * kPack);
    }
    auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(data));
    const T* from = head.rows + first * head.stride;
#pragma unroll 1
    for (int row = 0; row < rows; row += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kPacks / 2; ++i) {
        const bool is_token = first + row + places[i] < tokens;
        if (row + places[i] < rows)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + matrices[i]),
                       "l"(is_token ? from + offsets[i] : head.rows), "r"(is_token ? 16 : 0)
                       : "memory");
      }
      from += kAtOnce * head.stride;
      to += kAtOnce / 8 * kEight * 2;
    }
  }

  /// A warp's 16 rows as left operands.
  __device__ void to(Left (&left)[kWidth / kTile]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const T* from = data + lane / 8 % 2 * kEight + lane / 16 * kMatrix + lane % 8 * kPack;
#pragma unroll
    for (int k = 0; k < kWidth / kTile; ++k)
      load_matrices<false>(left[k].value, from + 2 * k * kMatrix);
  }

  /// Right operands of a warp's products: 16 rows as columns of the result; 16 rows to be summed
  /// over.
  [[nodiscard]] __device__ Right of_rows(int row, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Right right;
    load_matrices<false>(right.value, data + (row / 8 + lane / 16) * kEight +
                                          (2 * k + lane / 8 % 2) * kMatrix + lane % 8 * kPack);
    return right;
  }
  [[nodiscard]] __device__ Right of_columns(int row, int n) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Right right;
    load_matrices<true>(right.value, data + (row / 8 + lane / 8 % 2) * kEight +
                                         (2 * n + lane / 16) * kMatrix + lane % 8 * kPack);
    return right;
  }
};

/// Rows of a head on their way to shared memory, in the registers of kThreads threads: eight of
/// them have a matrix, so that they write it at once. (Copies by cp.async would write one row's
/// part of a matrix after the other.)
template <typename T, int kWidth, int kThreads, int kRowsAtMost>
class Moving {
 public:
  /// `rows` rows, a multiple of 8, from `first` on; zeros behind the last token.
  __device__ void load(const Head<T>& head, int first, int rows, int tokens, int thread) {
    const int row = first + thread % 8;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int matrix = thread / 8 + i * (kThreads / 8), eight = matrix / kColumns,
                column = matrix - eight * kColumns;
      packs_[i] = {0, 0, 0, 0};
      if (8 * eight < rows && row + 8 * eight < tokens)
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(packs_[i].x), "=r"(packs_[i].y), "=r"(packs_[i].z), "=r"(packs_[i].w)
                     : "l"(head.rows + (row + 8 * eight) * head.stride + column * kPack));
    }
  }

  __device__ void store(const Stored<T, kWidth>& to, int rows, int thread) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int matrix = thread / 8 + i * (kThreads / 8);
      if (matrix < rows / 8 * kColumns)
        *reinterpret_cast<uint4*>(to.data + matrix * kMatrix + thread % 8 * kPack) = packs_[i];
    }
  }

 private:
  static constexpr int kColumns = kWidth / kPack;
  static constexpr int kPacks = (kRowsAtMost * kColumns + kThreads - 1) / kThreads;
  uint4 packs_[kPacks];
};

/// Four lanes with two columns of four tiles each: afterwards lane i of them has all of tile i.
__device__ inline uint4 turn(const std::uint32_t (&x)[4]) {
  const auto lane = static_cast<int>(threadIdx.x);
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
  const Lane lane;
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
      const uint4 words = turn({pair(n), pair(n + 1), pair(n + 2), pair(n + 3)});
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
