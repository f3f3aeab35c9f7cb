#include "engine/kernels/attention/cached_attention.cuh"
#include "engine/kernels/gpu.h"

/// Keys and values into a cache, and attention of single rows to it.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kStoreThreads = 128, kThreads = 256, kJoinThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kStoreThreads)
    store_heads_kernel(const StoreHeads a, std::int64_t count) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kStoreThreads + threadIdx.x;
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

/// What some lanes have found of their keys for one query head; each has a pack of its values.
struct Found {
  float max = -INFINITY, sum = 0;
  float values[kPack] = {};

  /// Makes room for scores up to `larger`.
  __device__ void rescale(float larger) {
    const float factor = max == -INFINITY ? 0 : __expf(max - larger);
    sum *= factor;
#pragma unroll
    for (float& value : values) value *= factor;
    max = larger;
  }
  __device__ void add(float score, const float (&of_key)[kPack]) {
    const float weight = __expf(score - max);
    sum += weight;
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] += weight * of_key[i];
  }
  /// Takes what the lanes `offset` away have found.
  __device__ void join(int offset) {
    const float other = __shfl_xor_sync(0xffffffffu, max, offset), larger = fmaxf(max, other);
    const float own = max == -INFINITY ? 0 : __expf(max - larger);
    const float its = other == -INFINITY ? 0 : __expf(other - larger);
    sum = sum * own + __shfl_xor_sync(0xffffffffu, sum, offset) * its;
#pragma unroll
    for (float& value : values)
      value = value * own + __shfl_xor_sync(0xffffffffu, value, offset) * its;
    max = larger;
  }
};

__device__ inline float dot(const float (&query)[kPack], const float (&key)[kPack]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum += query[i] * key[i];
  return sum;
}

/// Over kLanes neighbouring lanes.
template <int kLanes>
__device__ float sum_of_lanes(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

/// One block has a run of a row's keys and one query head; kLanes lanes, which have a pack of a
/// head each, take keys by turns with others. The block whose run has the row's own key takes that
/// from qkv, and the one with the first query head that shares it stores it.
template <typename T, int kLanes>
__global__ void __launch_bounds__(kThreads) cached_attention_kernel(const CachedAttention a) {
  constexpr int kWarps = kThreads / kWarp, kSlices = kThreads / kLanes;
  constexpr int kAhead = 4;  // keys that are read at once
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kLanes, slice = threadIdx.x / kLanes;
  const int width = static_cast<int>(a.layout.head_dim), packs = width / kPack;
  const bool active = lane < packs;
  const std::int64_t row = blockIdx.z, head = blockIdx.y;
  const std::int64_t group = a.layout.heads / a.layout.kv_heads, kv_head = head / group;
  const int position = a.positions[row], splits = static_cast<int>(a.blocks.splits);
  const int oldest = first_key(a, position);
  const int run = (position - oldest + splits) / splits;  // of the keys that it sees, rounded up
  const int begin = oldest + static_cast<int>(blockIdx.x) * run;
  const int end = begin + run < position ? begin + run : position;  // of the keys before its own
  const bool has_own = begin <= position && position < begin + run;

  // The first keys are on their way while queries are read and turned.
  const std::int64_t base = static_cast<std::int64_t>(a.slots[row]) * a.capacity;
  const auto place = [&](int key) {
    return ((base + key) * a.layout.kv_heads + kv_head) * packs + lane;
  };
  Pack<T> keys[kAhead], values[kAhead];
  const auto read = [&](int from) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int key = from + u * kSlices + slice;
      keys[u] = values[u] = Pack<T>{};
      if (key >= end || !active) continue;
      keys[u] = load<T, kPack>(a.keys, place(key));
      values[u] = load<T, kPack>(a.values, place(key));
    }
  };
  read(begin);
  const float slope = a.alibi ? slope_of_head(a.first_head + head, a.model_heads) : 0;
  float query[kPack] = {};
  if (active) turned_pack<T>(a, row, {0, head}, lane, position).unpack(query);
#pragma unroll
  for (float& element : query) element *= a.scale;
  Found found;
  for (int from = begin; from < end; from += kSlices * kAhead) {
    if (from > begin) read(from);
    float scores[kAhead];
    float larger = found.max;
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int key = from + u * kSlices + slice;
      float elements[kPack];
      keys[u].unpack(elements);
      const float score = capped(a, sum_of_lanes<kLanes>(dot(query, elements)));
      scores[u] = key < end ? score + slope * static_cast<float>(key - position) : -INFINITY;
      larger = fmaxf(larger, scores[u]);
    }
    if (larger > found.max) found.rescale(larger);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      float elements[kPack];
      values[u].unpack(elements);
      if (scores[u] != -INFINITY) found.add(scores[u], elements);
    }
  }
  if (has_own && warp == 0) {
    Pack<T> key{}, value{};
    if (active) {
      key = turned_pack<T>(a, row, {1, kv_head}, lane, position);
      value = load<T, kPack>(a.qkv,
                             (row * a.layout.slots() + a.layout.slot({2, kv_head})) * packs + lane);
    }
    float of_key[kPack], of_value[kPack];
    key.unpack(of_key);
    value.unpack(of_value);
    const float score = capped(a, sum_of_lanes<kLanes>(dot(query, of_key)));
    if (slice == 0) {
      if (score > found.max) found.rescale(score);
      found.add(score, of_value);
    }
    if (slice == 0 && active && head % group == 0) {
      store(a.keys, place(position), key);
      store(a.values, place(position), value);
    }
  }

  // Slices of a warp join by their lanes, warps by the largest maximum.
  __shared__ float maxima[kWarps], sums[kWarps];
  __shared__ Pack<float> shared_values[kWarps][kLanes];
#pragma unroll
  for (int offset = kLanes; offset < kWarp; offset *= 2) found.join(offset);
  if (threadIdx.x % kWarp == 0) {
    maxima[warp] = found.max;
    sums[warp] = found.sum;
  }
  __syncthreads();
  float max = -INFINITY, sum = 0;
  for (int w = 0; w < kWarps; ++w) max = fmaxf(max, maxima[w]);
  for (int w = 0; w < kWarps; ++w)
    sum += maxima[w] == -INFINITY ? 0 : sums[w] * __expf(maxima[w] - max);
  if (threadIdx.x % kWarp < kLanes) {
    const float factor = found.max == -INFINITY ? 0 : __expf(found.max - max);
    Pack<float> own;
#pragma unroll
    for (int i = 0; i < kPack; ++i) own.value[i] = found.values[i] * factor;
    shared_values[warp][lane] = own;
  }
  __syncthreads();
  const std::int64_t place_of_head = row * a.layout.heads + head;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    float all = 0;
    for (int w = 0; w < kWarps; ++w) all += shared_values[w][i / kPack].value[i % kPack];
    if (a.partial == nullptr) {
      static_cast<T*>(a.out)[place_of_head * width + i] = from_float<T>(all / sum);
      continue;
    }
    float* out = a.partial + (place_of_head * splits + blockIdx.x) * (width + 2);
    out[i] = all;
    if (i == 0) {
      out[width] = max;
      out[width + 1] = sum;
    }
  }
}

/// A block has one query head of one row.
template <typename T>
__global__ void __launch_bounds__(kJoinThreads) join_splits_kernel(const CachedAttention a) {
  const int width = static_cast<int>(a.layout.head_dim), splits = static_cast<int>(a.blocks.splits);
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * a.layout.heads + blockIdx.x;
  const float* from = a.partial + head * splits * (width + 2);
  float max = -INFINITY, sum = 0;
  for (int s = 0; s < splits; ++s) max = fmaxf(max, from[s * (width + 2) + width]);
  for (int s = 0; s < splits; ++s) {
    const float own = from[s * (width + 2) + width];
    if (own != -INFINITY) sum += from[s * (width + 2) + width + 1] * __expf(own - max);
  }
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kJoinThreads) {
    float all = 0;
    for (int s = 0; s < splits; ++s) {
      const float own = from[s * (width + 2) + width];
      if (own != -INFINITY) all += from[s * (width + 2) + i] * __expf(own - max);
    }
    static_cast<T*>(a.out)[head * width + i] = from_float<T>(all / sum);
  }
}

template <typename T, int kLanes>
void launch(const CachedAttention& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.blocks.splits), static_cast<unsigned>(a.layout.heads),
                  static_cast<unsigned>(a.rows));
  cached_attention_kernel<T, kLanes><<<grid, kThreads, 0, stream>>>(a);
  check_launch("cached_attention");
}

}  // namespace

void store_heads(const StoreHeads& args, cudaStream_t stream) {
  const std::int64_t count = args.rows * 2 * args.layout.kv_heads * (args.layout.head_dim / kPack);
  if (count == 0) return;
  with_type(args.dtype, [&](auto type) {
    store_heads_kernel<decltype(type)>
        <<<blocks_for(count, kStoreThreads), kStoreThreads, 0, stream>>>(args, count);
  });
  check_launch("store_heads");
}

void cached_attention(const CachedAttention& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const std::int64_t width = args.layout.head_dim;
  require_taken(cached_head_dims(args.table != nullptr), width, "cached attention, head_dim");
  if (multiplies(args.dtype)) {
    cached_attention_products(args, stream);
  } else {
    with_type(args.dtype, [&](auto type) {
      using T = decltype(type);
      if (width <= 8 * kPack) return launch<T, 8>(args, stream);
      if (width <= 16 * kPack) return launch<T, 16>(args, stream);
      launch<T, 32>(args, stream);
    });
  }
  if (args.partial == nullptr) return;
  with_type(args.dtype, [&](auto type) {
    const dim3 heads(static_cast<unsigned>(args.layout.heads), static_cast<unsigned>(args.rows));
    join_splits_kernel<decltype(type)><<<heads, kJoinThreads, 0, stream>>>(args);
  });
  check_launch("join_splits");
}

}  // namespace dstrain::kernels::cuda
