#pragma once

#include <cuda_fp8.h>

#include "engine/kernels/device.cuh"
#include "engine/kernels/linear/kernels.h"

/// What kernels that write codes of eight bits share. A block has a tile of kCodeRows rows: it
/// writes codes as rows, puts them into shared memory, and turns them there into columns, four by
/// four bytes in registers.
namespace dstrain::kernels::cuda {

inline constexpr int kCodeRows = kQuantizeRows;
inline constexpr int kStrip = 16;       ///< rows whose codes make 16 bytes of a column
inline constexpr int kWordsOfWarp = 4;  ///< columns of four codes that a warp turns at once

/// Eight codes.
struct alignas(8) Codes {
  std::uint32_t word[2];
};

template <Fp8Format kFormat>
__device__ std::uint32_t codes_of(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE,
                                  kFormat == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2);
}

template <Fp8Format kFormat>
__device__ Codes codes_of(const float (&x)[kPack], float factor) {
  Codes codes{};
#pragma unroll
  for (int i = 0; i < kPack; i += 2)
    codes.word[i / 4] |= codes_of<kFormat>(x[i] * factor, x[i + 1] * factor) << (8 * (i % 4));
  return codes;
}

/// Where word `word` of row `row` of a tile with kWords words a row lies, such that neither rows
/// nor columns meet in a bank.
template <int kWords>
__device__ int place(int row, int word) {
  static_assert(kWords % 16 == 0);
  return (row * kWords + word) ^ (4 * (row / kStrip));
}

/// The codes of pack `pack` of a row.
template <int kWords>
__device__ void put(std::uint32_t* tile, int row, int pack, const Codes& codes) {
  tile[place<kWords>(row, 2 * pack)] = codes.word[0];
  tile[place<kWords>(row, 2 * pack + 1)] = codes.word[1];
}

/// Four words, each of four columns in one row, become words of four rows in one column.
__device__ inline void turn(std::uint32_t (&word)[4]) {
  const std::uint32_t a = __byte_perm(word[0], word[1], 0x5140),
                      b = __byte_perm(word[2], word[3], 0x5140),
                      c = __byte_perm(word[0], word[1], 0x7362),
                      d = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(a, b, 0x5410);
  word[1] = __byte_perm(a, b, 0x7632);
  word[2] = __byte_perm(c, d, 0x5410);
  word[3] = __byte_perm(c, d, 0x7632);
}

/// Where a tile stands in its matrix [rows, cols].
struct TilePlace {
  std::int64_t top, left, rows, cols;
};

/// A warp writes the words of its group, kWordsOfWarp * group and the next ones, of all rows as
/// columns of out_t [cols, rows]; eight of its lanes write 128 bytes of a column.
template <int kWords>
__device__ void store_columns(const std::uint32_t* tile, int group, std::uint8_t* out_t,
                              const TilePlace& at) {
  static_assert(kCodeRows / kStrip * kWordsOfWarp == kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int strip = lane % 8, word = kWordsOfWarp * group + lane / 8;
  const std::int64_t y = at.top + strip * kStrip, x = at.left + word * 4;
  if (y >= at.rows || x >= at.cols) return;
  std::uint32_t column[4][4];
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    std::uint32_t rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = tile[place<kWords>(strip * kStrip + 4 * part + i, word)];
    turn(rows);
#pragma unroll
    for (int i = 0; i < 4; ++i) column[i][part] = rows[i];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint4*>(out_t + (x + i) * at.rows + y) =
        make_uint4(column[i][0], column[i][1], column[i][2], column[i][3]);
  }
}

/// The largest partial maximum, for the whole block. `shared` [32].
__device__ inline float largest_of(const float* partial, float* shared) {
  float max = 0;
  for (std::int64_t i = threadIdx.x; i < kAbsMaxPartials; i += blockDim.x)
    max = fmaxf(max, partial[i]);
  return block_max(max, shared);
}

/// The factor of codes for the whole block: of the largest partial maximum times `gain`, then
/// written, or where `partial` is null read. `shared` [32].
template <Fp8Format kFormat>
__device__ float scale_of(const float* partial, float* scale, float* shared, float gain = 1.0f) {
  if (partial == nullptr) return *scale;
  const float found = code_scale(kFormat, largest_of(partial, shared) * gain);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *scale = found;
  return found;
}

}  // namespace dstrain::kernels::cuda
