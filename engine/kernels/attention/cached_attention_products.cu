#include "engine/kernels/attention/cached_attention.cuh"
#include "engine/kernels/tensor_cores.cuh"

/// Attention of single rows to a cache by products of tiles: up to eight query heads that share a
/// key head are the columns of the tensor cores' right operand, keys are the rows of the left one.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kHeads = static_cast<int>(kCachedHeads);  ///< of a block: columns of a product
constexpr int kSpan = 64;  ///< elements of a head that four lanes read at once

/// Over the eight lanes that hold the rows of a column.
__device__ inline float column_max(float x) {
#pragma unroll
  for (int offset = 4; offset < kWarp; offset *= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}
__device__ inline float column_sum(float x) {
#pragma unroll
  for (int offset = 4; offset < kWarp; offset *= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

/// A warp takes 16 keys at a time. Of keys a lane reads two rows by 32 bytes of each span, as its
/// part of the left operand [keys, elements]; of values four rows by whole packs, from which it
/// pairs neighbouring keys into the left operand [elements, keys]. Heads of fewer than kWidth
/// elements are filled up with zeros.
template <typename T, int kWidth, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp) cached_products_kernel(const CachedAttention a) {
  constexpr int kSpans = kWidth / kSpan, kPacks = kWidth / kPack, kThreads = kWarps * kWarp;
  constexpr int kValuePacks = kPacks / 8;       ///< of a lane and a key
  constexpr int kValueWords = 4 * kValuePacks;  ///< the same in words
  const Lane lane;
  const int quad = lane.index % 4;
  const int width = static_cast<int>(a.layout.head_dim), packs = width / kPack;
  const std::int64_t row = blockIdx.z, group = a.layout.heads / a.layout.kv_heads;
  const std::int64_t chunks = (group + kHeads - 1) / kHeads;
  const std::int64_t kv_head = blockIdx.y / chunks, first = blockIdx.y % chunks * kHeads;
  const int heads = static_cast<int>(group - first < kHeads ? group - first : kHeads);
  const std::int64_t head = kv_head * group + first;
  const int position = a.positions[row], splits = static_cast<int>(a.blocks.splits);
  const int oldest = first_key(a, position);
  const int run = (position - oldest + splits) / splits;  // of the keys that it sees, rounded up
  const int begin = oldest + static_cast<int>(blockIdx.x) * run;
  const int end = begin + run < position + 1 ? begin + run : position + 1;

  const std::int64_t base = static_cast<std::int64_t>(a.slots[row]) * a.capacity;
  const std::int64_t stride = a.layout.kv_heads * packs;  // packs from key to key
  const std::int64_t start = base * stride + kv_head * packs;
  const uint4 *keys = static_cast<const uint4*>(a.keys) + start,
              *values = static_cast<const uint4*>(a.values) + start;

  struct Tile {
    uint4 keys[2][2 * kSpans];
    uint4 values[4][kValuePacks];
  };
  const auto key_pack = [quad](int i) { return i / 2 * 8 + 2 * quad + i % 2; };
  // The row's own key, at `position`, is not read: it may not be there yet.
  const auto read = [&](Tile& tile, int from) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = from + lane.row + 8 * half;
#pragma unroll
      for (int i = 0; i < 2 * kSpans; ++i) {
        const int pack = key_pack(i);
        tile.keys[half][i] =
            key < end && key < position && pack < packs ? keys[key * stride + pack] : uint4{};
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = from + lane.column + i % 2 + i / 2 * 8;
#pragma unroll
      for (int j = 0; j < kValuePacks; ++j) {
        const int pack = lane.row * kValuePacks + j;
        tile.values[i][j] =
            key < end && key < position && pack < packs ? values[key * stride + pack] : uint4{};
      }
    }
  };
  Tile tile;
  int from = begin + lane.warp * kTile;
  if (from < end) read(tile, from);

  // Queries and the row's own key and value, turned by one thread a pack.
  __shared__ uint4 shared[kHeads + 2][kPacks];
  const uint4 *own_key = shared[kHeads], *own_value = shared[kHeads + 1];
  for (int unit = static_cast<int>(threadIdx.x); unit < (kHeads + 2) * kPacks; unit += kThreads) {
    const int which = unit / kPacks, pack = unit % kPacks;
    const bool is_query = which < kHeads, is_key = which == kHeads;
    Pack<T> found{};
    if (pack >= packs) {
    } else if (is_query) {
      if (which < heads) found = turned_pack<T>(a, row, {0, head + which}, pack, position);
    } else if (is_key) {
      found = turned_pack<T>(a, row, {1, kv_head}, pack, position);
    } else {
      found = load<T, kPack>(a.qkv,
                             (row * a.layout.slots() + a.layout.slot({2, kv_head})) * packs + pack);
    }
    shared[which][pack] = reinterpret_cast<const uint4&>(found);
    if (!is_query && pack < packs && first == 0 && begin <= position && position < end)
      store(is_key ? a.keys : a.values, start + position * stride + pack, found);
  }
  __syncthreads();
  uint4 query[2 * kSpans];
#pragma unroll
  for (int i = 0; i < 2 * kSpans; ++i) query[i] = shared[lane.row][key_pack(i)];
  float slopes[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int own = lane.column + i;
    slopes[i] =
        a.alibi && own < heads ? slope_of_head(a.first_head + head + own, a.model_heads) : 0;
  }

  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  float found[kValueWords][4] = {};  ///< [elements of two halves of a head, heads]
  const auto word = [](const uint4* packs, int i) {
    const uint4& pack = packs[i / 4];
    return i % 4 == 0 ? pack.x : i % 4 == 1 ? pack.y : i % 4 == 2 ? pack.z : pack.w;
  };
  while (from < end) {
    if (from <= position && position < from + kTile) {
      const int own = position - from;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (own != lane.row + 8 * half) continue;
#pragma unroll
        for (int i = 0; i < 2 * kSpans; ++i) tile.keys[half][i] = own_key[key_pack(i)];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (own != lane.column + i % 2 + i / 2 * 8) continue;
#pragma unroll
        for (int j = 0; j < kValuePacks; ++j)
          tile.values[i][j] = own_value[lane.row * kValuePacks + j];
      }
    }
    float scores[4] = {};
#pragma unroll
    for (int i = 0; i < 8 * kSpans; i += 2)
      multiply_add<T>(scores,
                      {{word(tile.keys[0], i), word(tile.keys[1], i), word(tile.keys[0], i + 1),
                        word(tile.keys[1], i + 1)}},
                      {{word(query, i), word(query, i + 1)}});
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = from + lane.row + i / 2 * 8;
      scores[i] = key < end ? capped(a, scores[i] * a.scale) +
                                  slopes[i % 2] * static_cast<float>(key - position)
                            : -INFINITY;
    }
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float larger = fmaxf(max[i], column_max(fmaxf(scores[i], scores[i + 2])));
      factor[i] = __expf(max[i] - larger);  // the first key of a tile is there: larger is finite
      max[i] = larger;
      scores[i] = __expf(scores[i] - larger);
      scores[i + 2] = __expf(scores[i + 2] - larger);
    }
    // The sum is that of the rounded weights, by which values are multiplied.
    std::uint32_t weights[2] = {pack_pair<T>(scores[0], scores[1]),
                                pack_pair<T>(scores[2], scores[3])};
    const float2 low = unpack_pair<T>(weights[0]), high = unpack_pair<T>(weights[1]);
    sum[0] = sum[0] * factor[0] + low.x + high.x;
    sum[1] = sum[1] * factor[1] + low.y + high.y;
    for (std::uint32_t& pair : weights) pair = transposed(pair);
#pragma unroll
    for (int i = 0; i < kValueWords / 2; ++i) {
      // Elements 2i and 2i + 1 of both halves of the lane's packs, of four keys.
      std::uint32_t low[4], high[4];
#pragma unroll
      for (int key = 0; key < 4; ++key) {
        low[key] = word(tile.values[key], i);
        high[key] = word(tile.values[key], i + kValueWords / 2);
      }
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int pick = odd == 0 ? 0x5410 : 0x7632;
        float(&to)[4] = found[2 * i + odd];
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j] *= factor[j % 2];
        multiply_add<T>(to,
                        {{__byte_perm(low[0], low[1], pick), __byte_perm(high[0], high[1], pick),
                          __byte_perm(low[2], low[3], pick), __byte_perm(high[2], high[3], pick)}},
                        {{weights[0], weights[1]}});
      }
    }
    from += kWarps * kTile;
    if (from < end) read(tile, from);
  }

  // Warps join by the largest maximum.
  __shared__ float maxima[kWarps][kHeads], sums[kWarps][kHeads], joined_max[kHeads], joined[kHeads];
  __shared__ float parts[kWarps][kHeads][kWidth + 4];  ///< element / (kWidth / 8) counts fastest
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] = column_sum(sum[i]);
    if (lane.row == 0) {
      maxima[lane.warp][lane.column + i] = max[i];
      sums[lane.warp][lane.column + i] = sum[i];
    }
  }
  __syncthreads();
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float larger = -INFINITY;
    for (int w = 0; w < kWarps; ++w) larger = fmaxf(larger, maxima[w][lane.column + i]);
    factor[i] = max[i] == -INFINITY ? 0 : __expf(max[i] - larger);
    if (lane.warp != 0 || lane.row != 0) continue;
    float total = 0;
    for (int w = 0; w < kWarps; ++w)
      total += maxima[w][lane.column + i] == -INFINITY
                   ? 0
                   : sums[w][lane.column + i] * __expf(maxima[w][lane.column + i] - larger);
    joined_max[lane.column + i] = larger;
    joined[lane.column + i] = total;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (lane.column + j % 2 >= heads) continue;
    float* const to = parts[lane.warp][lane.column + j % 2];
#pragma unroll
    for (int i = 0; i < kValueWords; ++i)
      to[(i + j / 2 * kValueWords) * 8 + lane.row] = found[i][j] * factor[j % 2];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < heads * kWidth; i += kThreads) {
    const int own = i / kWidth, stored = i % kWidth;
    const int element = stored % 8 * (kWidth / 8) + stored / 8;
    if (element >= width) continue;
    float all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all += parts[w][own][stored];
    const std::int64_t place = row * a.layout.heads + head + own;
    if (a.partial == nullptr) {
      static_cast<T*>(a.out)[place * width + element] = from_float<T>(all / joined[own]);
      continue;
    }
    float* out = a.partial + (place * splits + blockIdx.x) * (width + 2);
    out[element] = all;
    if (element == 0) {
      out[width] = joined_max[own];
      out[width + 1] = joined[own];
    }
  }
}

template <typename T, int kWidth, int kWarps>
void launch(const CachedAttention& a, cudaStream_t stream) {
  const std::int64_t group = a.layout.heads / a.layout.kv_heads;
  const dim3 grid(static_cast<unsigned>(a.blocks.splits),
                  static_cast<unsigned>(a.layout.kv_heads * ((group + kHeads - 1) / kHeads)),
                  static_cast<unsigned>(a.rows));
  cached_products_kernel<T, kWidth, kWarps><<<grid, kWarps * kWarp, 0, stream>>>(a);
  check_launch("cached_attention_products");
}

template <typename T>
void launch_width(const CachedAttention& a, cudaStream_t stream) {
  const bool few_warps = a.blocks.warps == 4;
  if (a.layout.head_dim > 128) return launch<T, 256, 4>(a, stream);
  if (a.layout.head_dim > 64)
    return few_warps ? launch<T, 128, 4>(a, stream) : launch<T, 128, 8>(a, stream);
  few_warps ? launch<T, 64, 4>(a, stream) : launch<T, 64, 8>(a, stream);
}

}  // namespace

void cached_attention_products(const CachedAttention& args, cudaStream_t stream) {
  check_products("cached_attention", args.dtype);
  if (args.dtype == DType::bf16) return launch_width<__nv_bfloat16>(args, stream);
  launch_width<__half>(args, stream);
}

}  // namespace dstrain::kernels::cuda
