#include <climits>

#include "engine/kernels/device.cuh"
#include "engine/kernels/experts/kernels.h"

/// The router: a warp has a row, each of its lanes every 32nd expert.
namespace dstrain::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kPerLane = kMaxExperts / cuda::kWarp;
constexpr int kShareThreads = 512;
constexpr std::int64_t kShareChunk = 256;  // rows that a block sums
static_assert(kShareThreads >= kMaxExperts);

std::int64_t share_chunks(std::int64_t rows) { return (rows + kShareChunk - 1) / kShareChunk; }

void check_sizes(std::int64_t experts, std::int64_t chosen) {
  require_taken(kExpertCounts, experts, "router, experts");
  require_taken(kChosenCounts, chosen, "router, experts of a row");
  DSTRAIN_CHECK(chosen <= experts, "router: more experts of a row than there are");
}

}  // namespace

std::int64_t expert_sums_scratch(std::int64_t samples, std::int64_t sample_rows,
                                 std::int64_t experts) {
  return 2 * samples * share_chunks(sample_rows) * experts;
}

namespace cuda {
namespace {

struct Best {
  float value;
  int expert;
};

/// A nan is taken for the smallest value, so that every choice is an expert.
__device__ bool better(const Best& a, const Best& b) {
  return a.value > b.value || (a.value == b.value && a.expert < b.expert);
}

__device__ Best warp_best(Best own) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Best other = {__shfl_xor_sync(0xffffffffu, own.value, offset),
                        __shfl_xor_sync(0xffffffffu, own.expert, offset)};
    if (better(other, own)) own = other;
  }
  return own;
}

template <typename T>
__device__ float logit(const void* logits, std::int64_t index) {
  return to_float(static_cast<const T*>(logits)[index]);
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) route_kernel(const Route a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, experts = static_cast<int>(a.experts);
  float value[kPerLane];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * kWarp;
    value[i] = e < experts ? logit<T>(a.logits, row * experts + e) : -INFINITY;
    largest = fmaxf(largest, value[i]);
  }
  largest = warp_max(largest);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + i * kWarp < experts) sum += expf(value[i] - largest);
  }
  sum = warp_sum(sum);
  unsigned taken = 0;
  float weight = 0, total = 0;
  int choice = 0;
  for (int j = 0; j < static_cast<int>(a.chosen); ++j) {
    Best best = {-INFINITY, INT_MAX};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + i * kWarp;
      const Best own = {isnan(value[i]) ? -INFINITY : value[i], e};
      if (e < experts && (taken >> i & 1u) == 0 && better(own, best)) best = own;
    }
    best = warp_best(best);
    if (best.expert % kWarp == lane) taken |= 1u << (best.expert / kWarp);
    const float share = expf(best.value - largest) / sum;
    total += share;
    if (lane == j) {
      weight = share;
      choice = best.expert;
    }
  }
  if (lane < static_cast<int>(a.chosen)) {
    a.choices[row * a.chosen + lane] = choice;
    a.weights[row * a.chosen + lane] = a.normalize ? weight / total : weight;
  }
  if (lane == 0) a.log_sum[row] = largest + logf(sum);
}

/// Tokens of a sample that count.
template <typename Args>
__device__ int length_of(const Args& a, std::int64_t sample) {
  return a.lengths != nullptr ? a.lengths[sample] : static_cast<int>(a.tokens);
}

/// The token of its sample that a row is.
template <typename Args>
__device__ int token_of(const Args& a, std::int64_t row) {
  const int place =
      a.places != nullptr ? a.places[a.first_row + row] : static_cast<int>(a.first_row + row);
  return place % static_cast<int>(a.tokens);
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) route_backward_kernel(const RouteBackward a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, experts = static_cast<int>(a.experts);
  const std::int64_t sample = (a.first_row + row) / a.sample_rows;
  float per_token = 0;
  if (a.seed != nullptr) {
    const int length = length_of(a, sample);
    if (token_of(a, row) < length) per_token = *a.seed / static_cast<float>(length);
  }
  const float balance = a.share != nullptr ? per_token * a.balance * experts : 0.0f;
  const float log_sum = a.log_sum[row];
  float p[kPerLane], grad[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * kWarp;
    p[i] = e < experts ? expf(logit<T>(a.logits, row * experts + e) - log_sum) : 0.0f;
    grad[i] = balance != 0 && e < experts ? balance * a.share[sample * experts + e] : 0.0f;
  }
  const bool chooses = lane < static_cast<int>(a.chosen);
  const std::int64_t own = row * a.chosen + lane;
  float of_weight = chooses ? a.grad_weights[own] : 0.0f;
  const int choice = chooses ? a.choices[own] : 0;
  if (a.normalize) {
    // weights = p / sum of the chosen p.
    const float weighted = warp_sum(chooses ? of_weight * a.weights[own] : 0.0f);
    const float total =
        warp_sum(chooses ? expf(logit<T>(a.logits, row * experts + choice) - log_sum) : 0.0f);
    of_weight = (of_weight - weighted) / total;
  }
  for (int j = 0; j < static_cast<int>(a.chosen); ++j) {
    const int expert = __shfl_sync(0xffffffffu, choice, j);
    const float of_expert = __shfl_sync(0xffffffffu, of_weight, j);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + i * kWarp == expert) grad[i] += of_expert;
    }
  }
  float inner = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) inner += p[i] * grad[i];
  inner = warp_sum(inner);
  const float of_log_sum = 2 * a.z * per_token * log_sum;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + i * kWarp;
    if (e < experts)
      static_cast<T*>(a.grad_logits)[row * experts + e] =
          from_float<T>(p[i] * (grad[i] - inner + of_log_sum));
  }
}

/// Sums of a chunk of a sample's rows: probabilities, then choices of each expert.
template <typename T>
__global__ void __launch_bounds__(kShareThreads) sum_chunks_kernel(const ExpertSums a) {
  __shared__ float sums[kShareThreads];
  __shared__ int counts[kMaxExperts];
  const int thread = static_cast<int>(threadIdx.x), experts = static_cast<int>(a.experts);
  const std::int64_t chunk = blockIdx.x, chunks = gridDim.x, sample = blockIdx.y;
  const std::int64_t begin = sample * a.sample_rows - a.first_row;
  // In their order the first rows count; of a part of a sample any may.
  const int length = length_of(a, sample);
  const std::int64_t own =
      a.places != nullptr ? a.sample_rows : min(a.sample_rows, std::int64_t{length});
  const std::int64_t end = min(begin + own, a.rows);
  const std::int64_t row = max(begin, std::int64_t{0}) + chunk * kShareChunk;
  const int rows = static_cast<int>(max(min(kShareChunk, end - row), std::int64_t{0}));
  const int groups = kShareThreads / experts, group = thread / experts, expert = thread % experts;
  const auto counts_row = [&](int r) {
    return a.places == nullptr || token_of(a, row + r) < length;
  };
  float sum = 0;
  if (group < groups) {
    for (int r = group; r < rows; r += groups)
      if (counts_row(r))
        sum += expf(logit<T>(a.logits, (row + r) * experts + expert) - a.log_sum[row + r]);
  }
  sums[thread] = sum;
  if (thread < experts) counts[thread] = 0;
  __syncthreads();
  // Whole numbers: their order changes nothing.
  const int chosen = static_cast<int>(a.chosen);
  for (int i = thread; i < rows * chosen; i += kShareThreads)
    if (counts_row(i / chosen)) atomicAdd(&counts[a.choices[row * a.chosen + i]], 1);
  __syncthreads();
  if (thread >= experts) return;
  for (int g = 1; g < groups; ++g) sum += sums[g * experts + thread];
  float* out = a.partial + 2 * (sample * chunks + chunk) * experts;
  out[thread] = sum;
  out[experts + thread] = static_cast<float>(counts[thread]);
}

__global__ void __launch_bounds__(kShareThreads)
    add_chunks_kernel(const ExpertSums a, std::int64_t chunks) {
  const int expert = static_cast<int>(threadIdx.x), experts = static_cast<int>(a.experts);
  const std::int64_t sample = blockIdx.x;
  if (expert >= experts) return;
  float sum = 0, count = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* in = a.partial + 2 * (sample * chunks + chunk) * experts;
    sum += in[expert];
    count += in[experts + expert];
  }
  a.sums[sample * experts + expert] = sum;
  a.sums[(a.samples + sample) * experts + expert] = count;
}

__global__ void __launch_bounds__(kShareThreads) shares_kernel(const ExpertShares a) {
  __shared__ float shared[kWarp];
  const int expert = static_cast<int>(threadIdx.x), experts = static_cast<int>(a.experts);
  float loss = 0;
  for (std::int64_t sample = 0; sample < a.samples && expert < experts; ++sample) {
    const float sum = a.sums[sample * experts + expert];
    const float count = a.sums[(a.samples + sample) * experts + expert];
    const auto tokens = static_cast<float>(length_of(a, sample));
    const float share = tokens > 0 ? count / tokens : 0.0f;
    a.share[sample * experts + expert] = share;
    if (share != 0) loss += static_cast<float>(experts) * share * (sum / tokens);
  }
  loss = block_sum(loss, shared);
  if (threadIdx.x == 0 && a.loss_sum != nullptr) *a.loss_sum += a.factor * loss;
}

}  // namespace

void route(const Route& args, cudaStream_t stream) {
  check_sizes(args.experts, args.chosen);
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    route_kernel<decltype(zero)>
        <<<blocks_for(args.rows, kWarps), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch("route");
}

void route_backward(const RouteBackward& args, cudaStream_t stream) {
  check_sizes(args.experts, args.chosen);
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    route_backward_kernel<decltype(zero)>
        <<<blocks_for(args.rows, kWarps), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch("route_backward");
}

void expert_sums(const ExpertSums& args, cudaStream_t stream) {
  check_sizes(args.experts, args.chosen);
  if (args.samples == 0) return;
  const std::int64_t chunks = share_chunks(args.sample_rows);
  const auto samples = static_cast<unsigned>(args.samples);
  with_type(args.dtype, [&](auto zero) {
    sum_chunks_kernel<decltype(zero)>
        <<<dim3(static_cast<unsigned>(chunks), samples), kShareThreads, 0, stream>>>(args);
  });
  check_launch("expert_sums");
  add_chunks_kernel<<<samples, kShareThreads, 0, stream>>>(args, chunks);
  check_launch("expert_sums sum");
}

void expert_shares(const ExpertShares& args, cudaStream_t stream) {
  check_sizes(args.experts, 1);
  if (args.samples == 0) return;
  shares_kernel<<<1, kShareThreads, 0, stream>>>(args);
  check_launch("expert_shares");
}

}  // namespace cuda
}  // namespace dstrain::kernels
