#include "engine/kernels/device.cuh"
#include "engine/kernels/linear/fp8.cuh"
#include "engine/kernels/linear/kernels.h"

/// Tensors to eight bits. A block turns one tile of kTile x kTile elements (fp8.cuh).
namespace dstrain::kernels::cuda {
namespace {

constexpr int kAbsMaxThreads = 512;
constexpr int kThreads = 256;
constexpr int kTile = kCodeRows;
constexpr int kWords = kTile / 4;  // of four codes in a row of the tile

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

template <typename T, Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const Quantize a) {
  __shared__ float shared[kWarp];
  __shared__ std::uint32_t tile[kTile * kWords];
  const float factor = 1.0f / scale_of<kFormat>(a.partial, a.scale, shared);
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
    put<kWords>(tile, row, pack, codes);
  }
  if (a.out_t == nullptr) return;
  __syncthreads();
  static_assert(kThreads / kWarp == kWords / kWordsOfWarp);  // each warp turns some columns
  store_columns<kWords>(tile, static_cast<int>(threadIdx.x) / kWarp, a.out_t,
                        {.top = top, .left = left, .rows = a.rows, .cols = a.cols});
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
