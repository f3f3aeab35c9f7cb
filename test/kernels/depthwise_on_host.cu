#include <algorithm>
#include <vector>

#include "engine/kernels/conv/depthwise_strip.cuh"
#include "test/kernels/depthwise_on_host.h"

namespace dstrain::test {
namespace {

using namespace kernels;
using namespace kernels::cuda;

/// Runs all threads; `target(k, block)` is where sum k of a block goes.
template <typename Strip, typename Args, typename Target>
void run_strips(const Args& a, const DepthwiseTiles& tiles, int height, const Target& target) {
  const std::int64_t channels = a.shape.channels;
  const std::int64_t valid = a.valid == nullptr ? a.shape.samples : *a.valid;
  for (std::int64_t block = 0; block < tiles.row_blocks; ++block) {
    for (int pair = 0; pair < channels / 2; ++pair) {
      for (int slot = 0; slot < tiles.slots; ++slot) {
        Strip strip(a, pair);
        float sum[Strip::kSums][2] = {};  // without fillers
        for (int i = 0; i < tiles.items_per_slot; ++i) {
          const std::int64_t index = (block * tiles.items_per_slot + i) * tiles.slots + slot;
          if (index >= tiles.items) break;
          const DepthwiseItem item = depthwise_item(tiles, index, height);
          const bool counted = item.sample < valid;
          strip.walk(a, item, counted);
          if (counted) std::copy_n(&strip.sum[0][0], 2 * Strip::kSums, &sum[0][0]);
        }
        for (int k = 0; k < Strip::kSums; ++k) {
          float* to = target(k, block);
          if (to == nullptr) continue;
          for (int c = 0; c < 2; ++c)
            to[2 * pair + c] = (slot == 0 ? 0 : to[2 * pair + c]) + sum[k][c];
        }
      }
    }
  }
}

template <typename Args, typename Body>
void with_host_strip(const Args& a, const DepthwiseTiles& tiles, const Body& body) {
  a.dtype == DType::f32 ? with_strip<float>(a, tiles, body)
                        : with_strip<__nv_bfloat16>(a, tiles, body);
}

}  // namespace

void depthwise_on_host(const Depthwise& a) {
  const DepthwiseTiles tiles = depthwise_forward_tiles(a.shape, a.dtype);
  for (int pair = 0; a.partial != nullptr && pair < a.shape.channels / 2; ++pair) {
    float centre[2];
    a.dtype == DType::f32 ? depthwise_centre<float>(a, pair, 0, 1, centre)
                          : depthwise_centre<__nv_bfloat16>(a, pair, 0, 1, centre);
    std::copy_n(centre, 2, a.centre + 2 * pair);
  }
  with_host_strip(a, tiles, [&]<typename Strip>() {
    run_strips<Strip>(a, tiles, static_cast<int>(a.shape.out_height), [&](int k, std::int64_t row) {
      return a.partial == nullptr ? nullptr : a.partial + (row * 2 + k) * a.shape.channels;
    });
  });
}

void depthwise_on_host(const DepthwiseBackward& a) {
  const DepthwiseTiles tiles = depthwise_backward_tiles(a.shape, a.dtype);
  const std::int64_t channels = a.shape.channels, taps = a.shape.kernel * a.shape.kernel;
  with_host_strip(a, tiles, [&]<typename Strip>() {
    run_strips<Strip>(a, tiles, static_cast<int>(a.shape.height), [&](int k, std::int64_t row) {
      if (k < 2) return a.partial == nullptr ? nullptr : a.partial + (row * 2 + k) * channels;
      return a.weight_partial == nullptr ? nullptr
                                         : a.weight_partial + (row * taps + k - 2) * channels;
    });
  });
  if (a.grad_weight == nullptr) return;
  for (std::int64_t row = 0; row < tiles.row_blocks; ++row) {
    for (std::int64_t i = 0; i < taps * channels; ++i)
      a.grad_weight[i % channels * taps + i / channels] +=
          a.weight_partial[row * taps * channels + i];
  }
}

}  // namespace dstrain::test
