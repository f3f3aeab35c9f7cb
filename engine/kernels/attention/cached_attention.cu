#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/device.cuh"

/// Keys and values into a cache, and attention of single rows to it.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxGroup = 8;  ///< query heads of a block, which read each key once
constexpr int kMaxWidth = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    store_heads_kernel(const StoreHeads a, std::int64_t count) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const std::int64_t packs = a.layout.head_dim / kPack, per_row = 2 * a.layout.kv_heads * packs;
  const std::int64_t row = index / per_row, unit = index - row * per_row;
  const std::int64_t pack = unit % packs, head = unit / packs % a.layout.kv_heads;
  const int part = unit >= a.layout.kv_heads * packs ? 2 : 1;
  const std::int64_t from = (row * a.layout.slots() + a.layout.slot({part, head})) * packs + pack;
  const std::int64_t to =
      ((a.slots[row] * a.capacity + a.positions[row]) * a.layout.kv_heads + head) * packs + pack;
  store(part == 1 ? a.keys : a.values, to, load<T, kPack>(a.qkv, from));
}

__device__ inline float slope_of_head(std::int64_t head, std::int64_t heads) {
  const int count = static_cast<int>(heads), own = static_cast<int>(head);
  const int power = 1 << (31 - __clz(count));
  const float exponent = own < power ? 8.0f * static_cast<float>(own + 1)
                                     : 4.0f * static_cast<float>(2 * (own - power) + 1);
  return exp2f(-exponent / static_cast<float>(power));
}

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T low, high;
};

/// What a warp has found of its keys for one query head. A lane has elements 2 (lane + 32 p) and
/// the next of each pair p.
template <int kPairs>
struct Found {
  float max = -INFINITY, sum = 0;
  float2 values[kPairs] = {};

  __device__ void add(float score, const float2 (&value)[kPairs]) {
    if (score > max) {
      const float factor = __expf(max - score);
      sum *= factor;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        values[p].x *= factor;
        values[p].y *= factor;
      }
      max = score;
    }
    const float weight = __expf(score - max);
    sum += weight;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      values[p].x += weight * value[p].x;
      values[p].y += weight * value[p].y;
    }
  }
};

/// One block has a run of a row's keys and up to kGroup of the query heads that share them; its
/// warps take keys by turns.
template <typename T, int kPairs, int kGroup>
__global__ void __launch_bounds__(kThreads) cached_attention_kernel(const CachedAttention a) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int width = static_cast<int>(a.layout.head_dim), pairs = width / 2;
  const std::int64_t row = blockIdx.z, group = a.layout.heads / a.layout.kv_heads;
  const std::int64_t chunks = (group + kGroup - 1) / kGroup;
  const std::int64_t kv_head = blockIdx.y / chunks, first = blockIdx.y % chunks * kGroup;
  const int heads = static_cast<int>(group - first < kGroup ? group - first : kGroup);
  const std::int64_t head = kv_head * group + first;
  const int position = a.positions[row], splits = static_cast<int>(a.splits);
  const int run = (position + splits) / splits;  // of position + 1 keys, rounded up
  const int begin = static_cast<int>(blockIdx.x) * run;
  const int end = begin + run < position + 1 ? begin + run : position + 1;

  float2 query[kGroup][kPairs];
  float slope[kGroup];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    slope[g] = a.alibi && g < heads ? slope_of_head(a.first_head + head + g, a.model_heads) : 0;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      query[g][p] = {0, 0};
      if (g >= heads || lane + p * kWarp >= pairs) continue;
      const std::int64_t slot = row * a.layout.slots() + a.layout.slot({0, head + g});
      const auto pair = static_cast<const Pair<T>*>(a.qkv)[slot * pairs + lane + p * kWarp];
      query[g][p] = {to_float(pair.low) * a.scale, to_float(pair.high) * a.scale};
    }
  }
  Found<kPairs> found[kGroup];
  const std::int64_t base = static_cast<std::int64_t>(a.slots[row]) * a.capacity;
#pragma unroll 2
  for (int key = begin + warp; key < end; key += kWarps) {
    const std::int64_t from = ((base + key) * a.layout.kv_heads + kv_head) * pairs + lane;
    float2 k[kPairs], v[kPairs];
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      k[p] = v[p] = {0, 0};
      if (lane + p * kWarp >= pairs) continue;
      const auto key_pair = static_cast<const Pair<T>*>(a.keys)[from + p * kWarp];
      const auto value_pair = static_cast<const Pair<T>*>(a.values)[from + p * kWarp];
      k[p] = {to_float(key_pair.low), to_float(key_pair.high)};
      v[p] = {to_float(value_pair.low), to_float(value_pair.high)};
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float score = 0;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) score += query[g][p].x * k[p].x + query[g][p].y * k[p].y;
#pragma unroll
      for (int offset = kWarp / 2; offset > 0; offset /= 2)
        score += __shfl_xor_sync(0xffffffffu, score, offset);
      found[g].add(score + slope[g] * static_cast<float>(key - position), v);
    }
  }

  // Warps join by the largest maximum.
  __shared__ float maxima[kWarps][kGroup], sums[kWarps][kGroup];
  __shared__ float2 values[kWarps][kPairs * kWarp];
  if (lane == 0) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      maxima[warp][g] = found[g].max;
      sums[warp][g] = found[g].sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (g >= heads) break;
    float max = -INFINITY, sum = 0;
    for (int w = 0; w < kWarps; ++w) max = fmaxf(max, maxima[w][g]);
    for (int w = 0; w < kWarps; ++w)
      sum += maxima[w][g] == -INFINITY ? 0 : sums[w][g] * __expf(maxima[w][g] - max);
    const float factor = found[g].max == -INFINITY ? 0 : __expf(found[g].max - max);
#pragma unroll
    for (int p = 0; p < kPairs; ++p)
      values[warp][lane + p * kWarp] = {found[g].values[p].x * factor,
                                        found[g].values[p].y * factor};
    __syncthreads();
    for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kThreads) {
      float2 all = {0, 0};
      for (int w = 0; w < kWarps; ++w) {
        all.x += values[w][pair].x;
        all.y += values[w][pair].y;
      }
      if (a.partial == nullptr) {
        auto* out = static_cast<Pair<T>*>(a.out);
        out[(row * a.layout.heads + head + g) * pairs + pair] = {from_float<T>(all.x / sum),
                                                                 from_float<T>(all.y / sum)};
      } else {
        float* out =
            a.partial + ((row * a.layout.heads + head + g) * splits + blockIdx.x) * (width + 2);
        out[2 * pair] = all.x;
        out[2 * pair + 1] = all.y;
        if (pair == 0) {
          out[width] = max;
          out[width + 1] = sum;
        }
      }
    }
    __syncthreads();
  }
}

/// A block has one query head of one row.
template <typename T>
__global__ void __launch_bounds__(kThreads) join_splits_kernel(const CachedAttention a) {
  const int width = static_cast<int>(a.layout.head_dim), splits = static_cast<int>(a.splits);
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * a.layout.heads + blockIdx.x;
  const float* from = a.partial + head * splits * (width + 2);
  float max = -INFINITY, sum = 0;
  for (int s = 0; s < splits; ++s) max = fmaxf(max, from[s * (width + 2) + width]);
  for (int s = 0; s < splits; ++s) {
    const float own = from[s * (width + 2) + width];
    if (own != -INFINITY) sum += from[s * (width + 2) + width + 1] * __expf(own - max);
  }
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    float all = 0;
    for (int s = 0; s < splits; ++s) {
      const float own = from[s * (width + 2) + width];
      if (own != -INFINITY) all += from[s * (width + 2) + i] * __expf(own - max);
    }
    static_cast<T*>(a.out)[head * width + i] = from_float<T>(all / sum);
  }
}

template <typename T, int kPairs, int kGroup>
void launch(const CachedAttention& a, cudaStream_t stream) {
  const std::int64_t group = a.layout.heads / a.layout.kv_heads;
  const dim3 grid(static_cast<unsigned>(a.splits),
                  static_cast<unsigned>(a.layout.kv_heads * ((group + kGroup - 1) / kGroup)),
                  static_cast<unsigned>(a.rows));
  cached_attention_kernel<T, kPairs, kGroup><<<grid, kThreads, 0, stream>>>(a);
  check_launch("cached_attention");
  if (a.partial == nullptr) return;
  const dim3 heads(static_cast<unsigned>(a.layout.heads), static_cast<unsigned>(a.rows));
  join_splits_kernel<T><<<heads, kThreads, 0, stream>>>(a);
  check_launch("join_splits");
}

template <typename T, int kPairs>
void launch_group(const CachedAttention& a, cudaStream_t stream) {
  const std::int64_t group = a.layout.heads / a.layout.kv_heads;
  if (group == 1) return launch<T, kPairs, 1>(a, stream);
  if (group <= kMaxGroup / 2) return launch<T, kPairs, kMaxGroup / 2>(a, stream);
  launch<T, kPairs, kMaxGroup>(a, stream);
}

}  // namespace

void store_heads(const StoreHeads& args, cudaStream_t stream) {
  const std::int64_t count = args.rows * 2 * args.layout.kv_heads * (args.layout.head_dim / kPack);
  if (count == 0) return;
  with_type(args.dtype, [&](auto type) {
    store_heads_kernel<decltype(type)>
        <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(args, count);
  });
  check_launch("store_heads");
}

void cached_attention(const CachedAttention& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  if (args.layout.head_dim > kMaxWidth || args.layout.head_dim % 2 != 0)
    throw Error(ErrorKind::internal,
                "cached attention takes heads of up to 256 elements, an even number");
  with_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    switch ((args.layout.head_dim + 2 * kWarp - 1) / (2 * kWarp)) {
      case 1:
        return launch_group<T, 1>(args, stream);
      case 2:
        return launch_group<T, 2>(args, stream);
      case 3:
        return launch_group<T, 3>(args, stream);
      default:
        return launch_group<T, 4>(args, stream);
    }
  });
}

}  // namespace dstrain::kernels::cuda
