#include <cuda_fp8.h>

#include "engine/kernels/device.cuh"
#include "engine/kernels/linear/kernels.h"

/// Tensors to eight bits. A block turns one tile of kTile x kTile elements: it reads packs of rows,
/// writes them as rows, and turns them in shared memory, four by four bytes in registers.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kAbsMaxThreads = 512;
constexpr int kThreads = 256;
constexpr int kTile = 128;
constexpr int kWords = kTile / 4;  // of four codes in a row of the tile
constexpr int kStrip = 16;         // rows whose codes make 16 bytes of a column
constexpr float kLeastAbsMax = 1e-30f;

template <typename T>
__global__ void __launch_bounds__(kAbsMaxThreads) abs_max_kernel(const AbsMax a) {
  __shared__ float shared[kWarp];
  const std::int64_t packs = a.count / kPack;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kAbsMaxThreads + threadIdx.x;
  constexpr std::int64_t kStride = kAbsMaxPartials * kAbsMaxThreads;
  float most = 0;
#pragma unroll 4
  for (std::int64_t pack = thread; pack < packs; pack += kStride) {
    float x[kPack];
    load<T, kPack>(a.x, pack).unpack(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) most = fmaxf(most, fabsf(x[i]));
  }
  for (std::int64_t i = packs * kPack + thread; i < a.count; i += kStride)
    most = fmaxf(most, fabsf(to_float(static_cast<const T*>(a.x)[i])));
  most = block_max(most, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = most;
}

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

/// Word `word` of row `row` of the tile, such that neither rows nor columns meet in a bank.
__device__ int place(int row, int word) { return row * kWords + (word ^ (4 * (row / kStrip))); }

/// Four words, each of four columns in one row, become words of four rows in one column.
__device__ void turn(std::uint32_t (&word)[4]) {
  const std::uint32_t a = __byte_perm(word[0], word[1], 0x5140),
                      b = __byte_perm(word[2], word[3], 0x5140),
                      c = __byte_perm(word[0], word[1], 0x7362),
                      d = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(a, b, 0x5410);
  word[1] = __byte_perm(a, b, 0x7632);
  word[2] = __byte_perm(c, d, 0x5410);
  word[3] = __byte_perm(c, d, 0x7632);
}

__device__ float scale_of(const Quantize& a, float largest_code, float* shared) {
  if (a.partial == nullptr) return *a.scale;
  float most = kLeastAbsMax;
  for (std::int64_t i = threadIdx.x; i < kAbsMaxPartials; i += kThreads)
    most = fmaxf(most, a.partial[i]);
  const float scale = block_max(most, shared) / largest_code;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *a.scale = scale;
  return scale;
}

template <typename T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const Quantize a) {
  __shared__ float shared[kWarp];
  __shared__ std::uint32_t tile[kTile * kWords];
  const float factor = 1.0f / scale_of(a, kFormat == Fp8Format::e4m3 ? 448.0f : 57344.0f, shared);
  const std::int64_t top = static_cast<std::int64_t>(blockIdx.y) * kTile,
                     left = static_cast<std::int64_t>(blockIdx.x) * kTile;
  constexpr int kPacks = kTile / kPack;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPacks; i += kThreads) {
    const int row = i / kPacks, pack = i % kPacks;
    const std::int64_t y = top + row, x = left + pack * kPack;
    if (y >= a.rows || x >= a.cols) continue;
    const std::int64_t index = (y * a.cols + x) / kPack;
    float value[kPack];
    load<T, kPack>(a.x, index).unpack(value);
    const Codes codes = codes_of<kFormat>(value, factor);
    if (a.out != nullptr) reinterpret_cast<Codes*>(a.out)[index] = codes;
    tile[place(row, 2 * pack)] = codes.word[0];
    tile[place(row, 2 * pack + 1)] = codes.word[1];
  }
  if (a.out_t == nullptr) return;
  __syncthreads();
  // A warp has four words of all rows; eight of its lanes write 128 bytes of a column.
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int strip = lane % 8, word = 4 * warp + lane / 8;
  const std::int64_t y = top + strip * kStrip, x = left + word * 4;
  if (y >= a.rows || x >= a.cols) return;
  std::uint32_t column[4][4];
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    std::uint32_t rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = tile[place(strip * kStrip + 4 * part + i, word)];
    turn(rows);
#pragma unroll
    for (int i = 0; i < 4; ++i) column[i][part] = rows[i];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint4*>(a.out_t + (x + i) * a.rows + y) =
        make_uint4(column[i][0], column[i][1], column[i][2], column[i][3]);
  }
}

}  // namespace

void abs_max(const AbsMax& args, cudaStream_t stream) {
  with_type(args.dtype, [&](auto zero) {
    abs_max_kernel<decltype(zero)>
        <<<static_cast<unsigned>(kAbsMaxPartials), kAbsMaxThreads, 0, stream>>>(args);
  });
  check_launch("abs_max");
}

void quantize(const Quantize& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const dim3 grid(blocks_for(args.cols, kTile), blocks_for(args.rows, kTile));
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.format == Fp8Format::e4m3) {
      quantize_kernel<T, Fp8Format::e4m3><<<grid, kThreads, 0, stream>>>(args);
    } else {
      quantize_kernel<T, Fp8Format::e5m2><<<grid, kThreads, 0, stream>>>(args);
    }
  });
  check_launch("quantize");
}

}  // namespace dstrain::kernels::cuda
