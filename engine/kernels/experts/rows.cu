#include "engine/kernels/device.cuh"
#include "engine/kernels/experts/kernels.h"

/// Rows in the order of experts and back. The sort counts the choices of chunks, sums the counts in
/// the order of experts and chunks, and then gives each choice its place: no result depends on
/// which block runs first.
namespace dstrain::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kSortThreads = 512;  // a choice each
constexpr int kSortWarps = kSortThreads / cuda::kWarp;
static_assert(kSortThreads >= kMaxExperts);

std::int64_t sort_chunks(std::int64_t choices) {
  return (choices + kSortThreads - 1) / kSortThreads;
}

void check_width(std::int64_t dim, std::int64_t chosen) {
  require_taken(kExpertDims, dim, "rows by expert, width");
  require_taken(kChosenCounts, chosen, "rows by expert, experts of a row");
}

}  // namespace

std::int64_t sort_by_expert_scratch(std::int64_t choices, std::int64_t experts) {
  return sort_chunks(choices) * experts;
}

namespace cuda {
namespace {

__global__ void __launch_bounds__(kSortThreads) count_choices_kernel(const SortByExpert a) {
  __shared__ int counts[kMaxExperts];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < a.experts) counts[thread] = 0;
  __syncthreads();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSortThreads + thread;
  if (i < a.choices_count) atomicAdd(&counts[a.choices[i]], 1);  // whole numbers: in any order
  __syncthreads();
  if (thread < a.experts) a.scratch[blockIdx.x * a.experts + thread] = counts[thread];
}

/// Counts of chunks to the first place of each chunk's choices of each expert.
__global__ void __launch_bounds__(kSortThreads)
    place_chunks_kernel(const SortByExpert a, std::int64_t chunks) {
  __shared__ int first[kMaxExperts];
  const int expert = static_cast<int>(threadIdx.x);
  const bool live = expert < a.experts;
  int total = 0;
  for (std::int64_t chunk = 0; live && chunk < chunks; ++chunk)
    total += a.scratch[chunk * a.experts + expert];
  if (live) a.counts[expert] = first[expert] = total;
  __syncthreads();
  if (expert == 0) {
    int sum = 0;
    for (int e = 0; e < a.experts; ++e) {
      const int count = first[e];
      first[e] = sum;
      sum += count;
    }
  }
  __syncthreads();
  int place = live ? first[expert] : 0;
  for (std::int64_t chunk = 0; live && chunk < chunks; ++chunk) {
    std::int32_t& slot = a.scratch[chunk * a.experts + expert];
    const int count = slot;
    slot = place;
    place += count;
  }
}

__global__ void __launch_bounds__(kSortThreads) place_choices_kernel(const SortByExpert a) {
  extern __shared__ int before[];  // [warps, experts]: choices of the warps before, in this chunk
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int experts = static_cast<int>(a.experts);
  for (int i = thread; i < kSortWarps * experts; i += kSortThreads) before[i] = 0;
  __syncthreads();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSortThreads + thread;
  const int expert = i < a.choices_count ? a.choices[i] : -1;
  const unsigned same = __match_any_sync(0xffffffffu, expert);
  const int in_warp = __popc(same & ((1u << lane) - 1));
  if (expert >= 0 && in_warp == 0) before[warp * experts + expert] = __popc(same);
  __syncthreads();
  if (thread < experts) {
    int sum = 0;
    for (int w = 0; w < kSortWarps; ++w) {
      const int count = before[w * experts + thread];
      before[w * experts + thread] = sum;
      sum += count;
    }
  }
  __syncthreads();
  if (expert >= 0)
    a.place[i] =
        a.scratch[blockIdx.x * a.experts + expert] + before[warp * experts + expert] + in_warp;
}

constexpr int kPlaceThreads = 256;

/// A block places the rows that one rank has for one expert.
__global__ void __launch_bounds__(kPlaceThreads) place_by_expert_kernel(const PlaceByExpert a) {
  __shared__ int first, place;  // of those rows
  const int thread = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x);
  const int experts = static_cast<int>(a.experts), blocks = static_cast<int>(gridDim.x);
  if (thread == 0) first = place = 0;
  __syncthreads();
  int rows_before = 0, places_before = 0;
  for (int i = thread; i < blocks; i += kPlaceThreads) {
    const int count = a.counts[i], order = i % experts - own % experts;
    if (i < own) rows_before += count;
    if (order < 0 || (order == 0 && i < own)) places_before += count;
  }
  atomicAdd(&first, rows_before);  // whole numbers: in any order
  atomicAdd(&place, places_before);
  __syncthreads();
  for (int i = thread; i < a.counts[own]; i += kPlaceThreads) a.place[first + i] = place + i;
}

/// A warp copies a row to all its places.
template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) spread_rows_kernel(const SpreadRows a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, packs = static_cast<int>(a.dim) / kPack;
  const int chosen = static_cast<int>(a.chosen);
  const int place = lane < chosen ? a.place[row * chosen + lane] : 0;
  for (int first = 0; first < packs; first += kWarp) {
    const int pack = first + lane;
    Pack<T> value{};
    if (pack < packs) value = load<T, kPack>(a.x, row * packs + pack);
    for (int j = 0; j < chosen; ++j) {
      const std::int64_t to = __shfl_sync(0xffffffffu, place, j);
      if (pack < packs) store(a.out, to * packs + pack, value);
    }
  }
}

template <typename T>
__device__ float sigmoid_of(const void* gate, std::int64_t row) {
  return 1.0f / (1.0f + expf(-to_float(static_cast<const T*>(gate)[row])));
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) combine_rows_kernel(const CombineRows a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, packs = static_cast<int>(a.dim) / kPack;
  const int chosen = static_cast<int>(a.chosen);
  const int own_place = lane < chosen ? a.place[row * chosen + lane] : 0;
  const float own_weight =
      lane < chosen && a.weights != nullptr ? a.weights[row * chosen + lane] : 1.0f;
  const float gate = a.shared != nullptr ? sigmoid_of<T>(a.gate, row) : 0.0f;
  for (int first = 0; first < packs; first += kWarp) {
    const int pack = first + lane;
    float sum[kPack] = {}, value[kPack];
    for (int j = 0; j < chosen; ++j) {
      const std::int64_t place = __shfl_sync(0xffffffffu, own_place, j);
      const float weight = __shfl_sync(0xffffffffu, own_weight, j);
      if (pack >= packs) continue;
      load<T, kPack>(a.y, place * packs + pack).unpack(value);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += weight * value[i];
    }
    if (pack >= packs) continue;
    if (a.shared != nullptr) {
      load<T, kPack>(a.shared, row * packs + pack).unpack(value);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += gate * value[i];
    }
    store(a.out, row * packs + pack, Pack<T>::of(sum));
  }
}

/// to = factor * grad of a row; the sum over the row of from * grad, in every lane.
template <typename T>
__device__ float scale_and_dot(const void* grad, std::int64_t grad_row, const void* from, void* to,
                               std::int64_t row, float factor, int packs, int lane) {
  float dot = 0;
  for (int pack = lane; pack < packs; pack += kWarp) {
    float g[kPack], v[kPack];
    load<T, kPack>(grad, grad_row * packs + pack).unpack(g);
    load<T, kPack>(from, row * packs + pack).unpack(v);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      dot += g[i] * v[i];
      g[i] *= factor;
    }
    store(to, row * packs + pack, Pack<T>::of(g));
  }
  return warp_sum(dot);
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    combine_rows_backward_kernel(const CombineRowsBackward a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, packs = static_cast<int>(a.dim) / kPack;
  for (int j = 0; j < static_cast<int>(a.chosen); ++j) {
    const std::int64_t choice = row * a.chosen + j;
    const float dot = scale_and_dot<T>(a.grad_out, row, a.y, a.grad_y, a.place[choice],
                                       a.weights[choice], packs, lane);
    if (lane == 0) a.grad_weights[choice] = dot;
  }
  if (a.shared == nullptr) return;
  const float gate = sigmoid_of<T>(a.gate, row);
  const float dot =
      scale_and_dot<T>(a.grad_out, row, a.shared, a.grad_shared, row, gate, packs, lane);
  if (lane == 0) static_cast<T*>(a.grad_gate)[row] = from_float<T>(dot * gate * (1.0f - gate));
}

}  // namespace

void sort_by_expert(const SortByExpert& args, cudaStream_t stream) {
  require_taken(kExpertCounts, args.experts, "sort_by_expert, experts");
  const std::int64_t chunks = sort_chunks(args.choices_count);
  if (chunks > 0) {
    count_choices_kernel<<<static_cast<unsigned>(chunks), kSortThreads, 0, stream>>>(args);
    check_launch("count_choices");
  }
  place_chunks_kernel<<<1, kSortThreads, 0, stream>>>(args, chunks);
  check_launch("place_chunks");
  if (chunks == 0) return;
  const auto shared = static_cast<std::size_t>(kSortWarps * args.experts) * sizeof(int);
  place_choices_kernel<<<static_cast<unsigned>(chunks), kSortThreads, shared, stream>>>(args);
  check_launch("place_choices");
}

void place_by_expert(const PlaceByExpert& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.ranks * args.experts);
  place_by_expert_kernel<<<blocks, kPlaceThreads, 0, stream>>>(args);
  check_launch("place_by_expert");
}

void spread_rows(const SpreadRows& args, cudaStream_t stream) {
  check_width(args.dim, args.chosen);
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    spread_rows_kernel<decltype(zero)>
        <<<blocks_for(args.rows, kWarps), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch("spread_rows");
}

void combine_rows(const CombineRows& args, cudaStream_t stream) {
  check_width(args.dim, args.chosen);
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    combine_rows_kernel<decltype(zero)>
        <<<blocks_for(args.rows, kWarps), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch("combine_rows");
}

void combine_rows_backward(const CombineRowsBackward& args, cudaStream_t stream) {
  check_width(args.dim, args.chosen);
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    combine_rows_backward_kernel<decltype(zero)>
        <<<blocks_for(args.rows, kWarps), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch("combine_rows_backward");
}

}  // namespace cuda
}  // namespace dstrain::kernels
