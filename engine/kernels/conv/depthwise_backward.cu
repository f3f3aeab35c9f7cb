#include "engine/kernels/conv/depthwise.cuh"

namespace dstrain::kernels {

std::int64_t depthwise_backward_partials(const DepthwiseShape& shape, DType dtype) {
  return depthwise_backward_tiles(shape, dtype).row_blocks;
}

namespace cuda {
namespace {

template <typename Strip>
__global__ void __launch_bounds__(kDepthwiseThreads, Strip::kBlocks)
    depthwise_backward_kernel(const DepthwiseBackward a, const DepthwiseTiles tiles) {
  extern __shared__ float shared[];
  const DepthwisePlace place(tiles);
  if (2 * place.pair < a.shape.channels)
    walk_items<Strip>(a, tiles, static_cast<int>(a.shape.height), place, shared);
  const auto to = [&](int k) -> float* {
    const std::int64_t channels = a.shape.channels;
    if (k < 2) return a.partial == nullptr ? nullptr : a.partial + (place.block * 2 + k) * channels;
    if (a.weight_partial == nullptr) return nullptr;
    return a.weight_partial + (place.block * Strip::kTaps + (k - 2)) * channels;
  };
  store_sums<Strip::kSums>(tiles, place.slab, a.shape.channels, shared, to);
}

constexpr int kAddRows = 16;

/// gradient[channel, tap] += sum over rows of partial [rows, taps, channels]; `write`: = instead.
__global__ void __launch_bounds__(kWarp* kAddRows)
    add_weight_partials_kernel(const float* partial, std::int64_t rows, int taps,
                               std::int64_t channels, float* gradient, bool write) {
  __shared__ float sums[kAddRows][kWarp + 1];
  const std::int64_t columns = taps * channels;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t row = threadIdx.y; row < rows; row += kAddRows)
      sum += partial[row * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int y = 1; y < kAddRows; ++y) sum += sums[y][threadIdx.x];
    float& to = gradient[column % channels * taps + column / channels];
    to = write ? sum : to + sum;
  }
}

}  // namespace

void depthwise_backward(const DepthwiseBackward& args, cudaStream_t stream) {
  check_depthwise(args.shape);
  const DepthwiseShape& s = args.shape;
  if (s.samples == 0 || s.height <= 0 || s.width <= 0) return;
  const DepthwiseTiles tiles = depthwise_backward_tiles(s, args.dtype);
  with_type(args.dtype, [&](auto zero) {
    with_strip<decltype(zero)>(args, tiles, [&]<typename Strip>() {
      depthwise_backward_kernel<Strip>
          <<<depthwise_blocks(tiles), static_cast<unsigned>(tiles.threads()),
             sums_bytes<Strip>(tiles), stream>>>(args, tiles);
    });
  });
  check_launch("depthwise_backward");
  if (args.grad_weight == nullptr) return;
  const int taps = s.kernel * s.kernel;
  add_weight_partials_kernel<<<blocks_for(taps * s.channels, kWarp), dim3(kWarp, kAddRows), 0,
                               stream>>>(args.weight_partial, tiles.row_blocks, taps, s.channels,
                                         args.grad_weight, args.write_weight);
  check_launch("depthwise_backward's sums");
}

}  // namespace cuda
}  // namespace dstrain::kernels
