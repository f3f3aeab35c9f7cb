#include "engine/kernels/device.cuh"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/tensor_cores.cuh"

/// The product of up to eight rows with a weight: it is read once, at the rate of the memory.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kSpan = 64;  ///< of a row's elements that four lanes read at once: a line of the L2
constexpr int kWords = 4;  ///< of 32 bits in 16 bytes

/// A lane's 32 bytes of a span: four pairs of words, each for one product of tiles. Which elements
/// these are does not matter, as long as they are the same of weight and x.
struct Span {
  uint4 half[2];

  __device__ static Span at(const void* row, int span, int lane_of_row) {
    const uint4* from = static_cast<const uint4*>(row) + span * 8 + 2 * lane_of_row;
    return {{__ldg(from), __ldg(from + 1)}};
  }
  [[nodiscard]] __device__ std::uint32_t word(int i) const {
    return reinterpret_cast<const std::uint32_t*>(half)[i];
  }
};

/// A block has 16 outputs; its warps take spans by turns, kAhead of them at once.
template <typename T, int kWarps, int kAhead>
__global__ void __launch_bounds__(kWarps* kWarp) few_rows_kernel(const FewRows a) {
  const Lane lane;
  const int lane_of_row = lane.column / 2;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const auto weight_row = [&](int row) {
    const std::int64_t output = first + row < a.outputs ? first + row : a.outputs - 1;
    return static_cast<const T*>(a.weight) + output * a.weight_stride;
  };
  const T *low = weight_row(lane.row), *high = weight_row(lane.row + kTile / 2);
  const bool has_row = lane.row < a.rows;
  const T* x = static_cast<const T*>(a.x) + (has_row ? lane.row : 0) * a.x_stride;
  const int spans = static_cast<int>(a.depth / kSpan);
  float sums[4] = {};
  for (int from = lane.warp; from < spans; from += kWarps * kAhead) {
    Span lows[kAhead], highs[kAhead], xs[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int span = from + u * kWarps;
      lows[u] = highs[u] = xs[u] = Span{};
      if (span >= spans) continue;
      lows[u] = Span::at(low, span, lane_of_row);
      highs[u] = Span::at(high, span, lane_of_row);
      if (has_row) xs[u] = Span::at(x, span, lane_of_row);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int i = 0; i < 2 * kWords; i += 2)
        multiply_add<T>(
            sums,
            {{lows[u].word(i), highs[u].word(i), lows[u].word(i + 1), highs[u].word(i + 1)}},
            {{xs[u].word(i), xs[u].word(i + 1)}});
    }
  }
  __shared__ float parts[kWarps][kMaxFewRows][kTile + 1];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    parts[lane.warp][lane.column + i % 2][lane.row + i / 2 * (kTile / 2)] = sums[i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.rows * kTile; i += kWarps * kWarp) {
    const int row = i / kTile, output = i % kTile;
    if (first + output >= a.outputs) continue;
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp][row][output];
    sum *= a.alpha;
    if (a.bias != nullptr) sum += to_float(static_cast<const T*>(a.bias)[first + output]);
    static_cast<T*>(a.out)[row * a.out_stride + first + output] = from_float<T>(sum);
  }
}

template <typename T>
void launch(const FewRows& a, cudaStream_t stream) {
  const unsigned blocks = blocks_for(a.outputs, kTile);
  // So few blocks that each multiprocessor has one at most need more warps to ask for memory.
  constexpr unsigned kFewBlocks = 132;
  if (blocks <= kFewBlocks) {
    few_rows_kernel<T, 16, 2><<<blocks, 16 * kWarp, 0, stream>>>(a);
  } else {
    few_rows_kernel<T, 8, 1><<<blocks, 8 * kWarp, 0, stream>>>(a);
  }
  check_launch("few_rows");
}

}  // namespace

void few_rows(const FewRows& args, cudaStream_t stream) {
  check_products("few_rows", args.dtype);
  if (args.dtype == DType::bf16) return launch<__nv_bfloat16>(args, stream);
  launch<__half>(args, stream);
}

}  // namespace dstrain::kernels::cuda
