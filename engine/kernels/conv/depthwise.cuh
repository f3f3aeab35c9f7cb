#pragma once

#include "engine/kernels/conv/depthwise_strip.cuh"
#include "engine/kernels/device.cuh"

/// The kernel around a strip, forward and backward.
namespace dstrain::kernels::cuda {

/// Where a thread stands.
struct DepthwisePlace {
  int lane, slot, slab, pair;
  std::int64_t block;

  __device__ explicit DepthwisePlace(const DepthwiseTiles& tiles)
      : lane(static_cast<int>(threadIdx.x) % tiles.lanes),
        slot(static_cast<int>(threadIdx.x) / tiles.lanes),
        slab(static_cast<int>(blockIdx.x) % tiles.slabs),
        pair(slab * tiles.lanes + lane),
        block(static_cast<int>(blockIdx.x) / tiles.slabs) {}
};

/// Puts the sums of a thread where those of its block are added.
template <int K>
__device__ void share_sums(const float (&sum)[K][2], const DepthwiseTiles& tiles,
                           const DepthwisePlace& place, float* shared) {
  const int row = 2 * tiles.lanes;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    float* own = shared + (place.slot * K + k) * row + 2 * place.lane;
    own[0] = sum[k][0];
    own[1] = sum[k][1];
  }
}

/// Adds all threads' shared sums of a channel over the slots, in order. Sum k
/// goes to to(k) [channels], unless that is null.
template <int K, typename Target>
__device__ void store_sums(const DepthwiseTiles& tiles, int slab, std::int64_t channels,
                           const float* shared, const Target& to) {
  const int row = 2 * tiles.lanes;
  __syncthreads();
  const std::int64_t first = static_cast<std::int64_t>(slab) * row;
  for (int i = static_cast<int>(threadIdx.x); i < K * row; i += static_cast<int>(blockDim.x)) {
    const std::int64_t channel = first + i % row;
    float* out = to(i / row);
    if (out == nullptr || channel >= channels) continue;
    float total = 0;
    for (int s = 0; s < tiles.slots; ++s) total += shared[s * K * row + i];
    out[channel] = total;
  }
}

/// Walks the items of this thread and shares its sums. Fillers are the last samples, and no item
/// comes after one of a later sample.
template <typename Strip, typename Args>
__device__ void walk_items(const Args& a, const DepthwiseTiles& tiles, int height,
                           const DepthwisePlace& place, float* shared) {
  const std::int64_t valid =
      a.valid == nullptr ? a.shape.samples : static_cast<std::int64_t>(*a.valid);
  Strip strip(a, place.pair);
  bool taken = false;
  for (int i = 0; i < tiles.items_per_slot; ++i) {
    const std::int64_t index = (place.block * tiles.items_per_slot + i) * tiles.slots + place.slot;
    if (index >= tiles.items) break;
    const DepthwiseItem item = depthwise_item(tiles, index, height);
    const bool counted = item.sample < valid;
    if (!counted && !taken) {
      share_sums(strip.sum, tiles, place, shared);
      taken = true;
    }
    strip.walk(a, item, counted);
  }
  if (!taken) share_sums(strip.sum, tiles, place, shared);
}

template <typename Strip>
std::size_t sums_bytes(const DepthwiseTiles& tiles) {
  return sizeof(float) * 2 * Strip::kSums * static_cast<std::size_t>(tiles.threads());
}

inline unsigned depthwise_blocks(const DepthwiseTiles& tiles) {
  return static_cast<unsigned>(tiles.row_blocks * tiles.slabs);
}

inline void check_depthwise(const DepthwiseShape& s) {
  if (depthwise_fits(s)) return;
  throw Error(ErrorKind::internal, "depthwise convolution of kernel " + std::to_string(s.kernel) +
                                       ", stride " + std::to_string(s.stride) + ", padding " +
                                       std::to_string(s.before) + " and " +
                                       std::to_string(s.channels) + " channels has no kernel");
}

}  // namespace dstrain::kernels::cuda
