#pragma once

#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/device.cuh"

/// What both kernels of attention to a cache share.
namespace dstrain::kernels::cuda {

/// Attention to a cache by tensor cores, for 16-bit elements that they multiply.
void cached_attention_products(const CachedAttention& args, cudaStream_t stream);

/// The first key that a row at `position` sees.
__device__ inline int first_key(const CachedAttention& a, int position) {
  const int window = static_cast<int>(a.window);
  return window > 0 && position >= window ? position + 1 - window : 0;
}

__device__ inline float capped(const CachedAttention& a, float score) {
  return a.softcap > 0 ? a.softcap * tanhf(score / a.softcap) : score;
}

__device__ inline float slope_of_head(std::int64_t head, std::int64_t heads) {
  const int count = static_cast<int>(heads), own = static_cast<int>(head);
  const int power = 1 << (31 - __clz(count));
  const float exponent = own < power ? 8.0f * static_cast<float>(own + 1)
                                     : 4.0f * static_cast<float>(2 * (own - power) + 1);
  return exp2f(-exponent / static_cast<float>(power));
}

/// Pack `index` of a head of a row of qkv, turned by the row's position where there is a table.
template <typename T>
__device__ Pack<T> turned_pack(const CachedAttention& a, std::int64_t row, HeadLayout::Place place,
                               int index, int position) {
  const int packs = static_cast<int>(a.layout.head_dim) / kPack, half = packs / 2;
  const std::int64_t from = (row * a.layout.slots() + a.layout.slot(place)) * packs;
  const Pack<T> pack = load<T, kPack>(a.qkv, from + index);
  if (a.table == nullptr) return pack;
  const bool is_low = index < half;
  const Pack<T> partner = load<T, kPack>(a.qkv, from + (is_low ? index + half : index - half));
  const auto angles = load<float, 2 * kPack>(
      a.table, static_cast<std::int64_t>(position) * half + (is_low ? index : index - half));
  float own[kPack], other[kPack];
  pack.unpack(own);
  partner.unpack(other);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float cosine = angles.value[2 * i], sine = angles.value[2 * i + 1];
    own[i] = own[i] * cosine + (is_low ? -other[i] : other[i]) * sine;
  }
  return Pack<T>::of(own);
}

}  // namespace dstrain::kernels::cuda
