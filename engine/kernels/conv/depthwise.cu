#include "engine/kernels/conv/depthwise.cuh"

namespace dstrain::kernels {

std::int64_t depthwise_partials(const DepthwiseShape& shape, DType dtype) {
  return depthwise_forward_tiles(shape, dtype).row_blocks;
}

namespace cuda {
namespace {

/// Blocks of a multiprocessor, by which registers are held down.
template <int K, int S, int Q>
inline constexpr int kResident = K == 5 ? 3 : S == 1 && Q == 7 ? 4 : 5;

template <typename T, int K, int S, int Q>
__global__ void __launch_bounds__(kDepthwiseThreads, sizeof(T) == 2 ? kResident<K, S, Q> : 2)
    depthwise_kernel(const Depthwise a, const DepthwiseTiles tiles) {
  using Strip = DepthwiseStrip<T, K, S, Q>;
  extern __shared__ float shared[];
  const DepthwisePlace place(tiles);
  float sum[Strip::kSums][2] = {};
  if (2 * place.pair < a.shape.channels) {
    Strip strip(a, place.pair);
    walk_items(a, tiles, static_cast<int>(a.shape.out_height), strip, place.block, place.slot);
#pragma unroll
    for (int k = 0; k < Strip::kSums; ++k) {
      sum[k][0] = strip.sum[k][0];
      sum[k][1] = strip.sum[k][1];
    }
  }
  if (a.partial == nullptr) return;
  const auto to = [&](int k) { return a.partial + (place.block * 2 + k) * a.shape.channels; };
  store_sums(sum, tiles, place.lane, place.slot, place.slab, a.shape.channels, shared, to);
}

template <typename T, int K, int S, int Q>
void launch(const Depthwise& args, const DepthwiseTiles& tiles, cudaStream_t stream) {
  depthwise_kernel<T, K, S, Q>
      <<<depthwise_blocks(tiles), static_cast<unsigned>(tiles.threads()),
         sums_bytes<DepthwiseStrip<T, K, S, Q>>(tiles), stream>>>(args, tiles);
}

template <typename T, int K>
void launch_kernel(const Depthwise& args, cudaStream_t stream) {
  const DepthwiseTiles tiles = depthwise_forward_tiles(args.shape, args.dtype);
  if (args.shape.stride == 2) return launch<T, K, 2, kStride2Columns>(args, tiles, stream);
  if constexpr (sizeof(T) == 2 && K == 3) {
    if (tiles.columns == 7) return launch<T, K, 1, 7>(args, tiles, stream);
  }
  launch<T, K, 1, 4>(args, tiles, stream);
}

}  // namespace

void depthwise(const Depthwise& args, cudaStream_t stream) {
  check_depthwise(args.shape);
  if (args.shape.samples == 0 || args.shape.out_height <= 0 || args.shape.out_width <= 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    args.shape.kernel == 3 ? launch_kernel<T, 3>(args, stream) : launch_kernel<T, 5>(args, stream);
  });
  check_launch("depthwise");
}

}  // namespace cuda
}  // namespace dstrain::kernels
