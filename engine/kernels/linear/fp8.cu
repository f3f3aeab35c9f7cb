#include <type_traits>

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
  float max = 0;
#pragma unroll 4
  for (std::int64_t pack = thread; pack < packs; pack += kStride) {
    float x[kPack];
    load<T, kPack>(a.x, pack).unpack(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) max = fmaxf(max, fabsf(x[i]));
  }
  for (std::int64_t i = packs * kPack + thread; i < a.count; i += kStride)
    max = fmaxf(max, fabsf(to_float(static_cast<const T*>(a.x)[i])));
  max = block_max(max, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = max;
}

/// The threads of each pack of columns add their totals up in order.
__device__ void store_sums(const float (&total)[kPack], float* sums, std::int64_t left,
                           std::int64_t cols) {
  constexpr int kGroups = kThreads * kPack / kTile;
  __shared__ alignas(16) float totals[kGroups][kTile];
  constexpr int kPacks = kTile / kPack;
  const int group = static_cast<int>(threadIdx.x) / kPacks,
            pack = static_cast<int>(threadIdx.x) % kPacks;
  store(totals[group], pack, Pack<float>::of(total));
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kTile || left + column >= cols) return;
  float sum = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) sum += totals[g][column];
  sums[left + column] = sum;
}

template <typename T, Fp8Format kFormat, bool kSum>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const Quantize a) {
  __shared__ float shared[kWarp];
  __shared__ std::uint32_t tile[kTile * kWords];
  const float factor = 1.0f / scale_of<kFormat>(a.partial, a.scale, shared);
  const std::int64_t top = static_cast<std::int64_t>(blockIdx.y) * kTile,
                     left = static_cast<std::int64_t>(blockIdx.x) * kTile;
  constexpr int kPacks = kTile / kPack;
  static_assert(kThreads % kPacks == 0);  // a thread stays in its columns
  [[maybe_unused]] float total[kPack] = {};
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPacks; i += kThreads) {
    const int row = i / kPacks, pack = i % kPacks;
    const std::int64_t y = top + row, x = left + pack * kPack;
    if (y >= a.rows || x >= a.cols) continue;
    const std::int64_t index = (y * a.cols + x) / kPack;
    float value[kPack];
    load<T, kPack>(a.x, index).unpack(value);
    if constexpr (kSum) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) total[k] += value[k];
    }
    const Codes codes = codes_of<kFormat>(value, factor);
    if (a.out != nullptr) reinterpret_cast<Codes*>(a.out)[index] = codes;
    put<kWords>(tile, row, pack, codes);
  }
  if constexpr (kSum) store_sums(total, a.sums + blockIdx.y * a.cols, left, a.cols);
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
  const auto launch = [&](auto format, auto sum) {
    with_type(args.dtype, [&](auto zero) {
      quantize_kernel<decltype(zero), decltype(format)::value, decltype(sum)::value>
          <<<grid, kThreads, 0, stream>>>(args);
    });
  };
  const auto with_sums = [&](auto format) {
    if (args.sums != nullptr) return launch(format, std::true_type{});
    launch(format, std::false_type{});
  };
  using E4m3 = std::integral_constant<Fp8Format, Fp8Format::e4m3>;
  using E5m2 = std::integral_constant<Fp8Format, Fp8Format::e5m2>;
  if (args.format == Fp8Format::e4m3) {
    with_sums(E4m3{});
  } else {
    with_sums(E5m2{});
  }
  check_launch("quantize");
}

}  // namespace dstrain::kernels::cuda
