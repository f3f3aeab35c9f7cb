#include "engine/kernels/conv/depthwise.cuh"

namespace dstrain::kernels {

std::int64_t depthwise_partials(const DepthwiseShape& shape, DType dtype) {
  return depthwise_forward_tiles(shape, dtype).row_blocks;
}

namespace cuda {
namespace {

template <typename Strip>
__global__ void __launch_bounds__(kDepthwiseThreads, Strip::kBlocks)
    depthwise_kernel(const Depthwise a, const DepthwiseTiles tiles) {
  extern __shared__ float shared[];
  const DepthwisePlace place(tiles);
  if (2 * place.pair < a.shape.channels)
    walk_items<Strip>(a, tiles, static_cast<int>(a.shape.out_height), place, shared);
  if (a.partial == nullptr) return;
  const auto to = [&](int k) { return a.partial + (place.block * 2 + k) * a.shape.channels; };
  store_sums<Strip::kSums>(tiles, place.slab, a.shape.channels, shared, to);
}

constexpr int kCentrePairs = 4;  ///< of a block, a warp each

template <typename T>
__global__ void __launch_bounds__(kWarp* kCentrePairs) depthwise_centre_kernel(const Depthwise a) {
  const int pair = static_cast<int>(blockIdx.x) * kCentrePairs + static_cast<int>(threadIdx.y);
  if (2 * pair >= a.shape.channels) return;
  float centre[2];
  depthwise_centre<T>(a, pair, static_cast<int>(threadIdx.x), kWarp, centre);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float sum = warp_sum(centre[c]);
    if (threadIdx.x == 0) a.centre[2 * pair + c] = sum;
  }
}

}  // namespace

void depthwise(const Depthwise& args, cudaStream_t stream) {
  check_depthwise(args.shape);
  if (args.shape.samples == 0 || args.shape.out_height <= 0 || args.shape.out_width <= 0) return;
  const DepthwiseTiles tiles = depthwise_forward_tiles(args.shape, args.dtype);
  with_type(args.dtype, [&](auto zero) {
    if (args.partial != nullptr) {
      depthwise_centre_kernel<decltype(zero)><<<blocks_for(args.shape.channels / 2, kCentrePairs),
                                                dim3(kWarp, kCentrePairs), 0, stream>>>(args);
    }
    with_strip<decltype(zero)>(args, tiles, [&]<typename Strip>() {
      depthwise_kernel<Strip><<<depthwise_blocks(tiles), static_cast<unsigned>(tiles.threads()),
                                sums_bytes<Strip>(tiles), stream>>>(args, tiles);
    });
  });
  check_launch("depthwise");
}

}  // namespace cuda
}  // namespace dstrain::kernels
