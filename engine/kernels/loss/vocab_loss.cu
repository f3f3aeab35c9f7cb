#include <cfloat>

#include "engine/kernels/device.cuh"
#include "engine/kernels/gpu.h"
#include "engine/kernels/loss/kernels.h"
#include "engine/kernels/loss/vocab_loss.cuh"

/// Cross entropy over rows of 10^5 classes: one block a row, where vocab_loss_cluster.cu does not
/// take it. The row is read twice, the second time from its end, so that what L2 still holds of it
/// is met first.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 1024;

template <typename T>
__device__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

/// What a thread knows of its part of a row.
template <typename T>
struct Part {
  float max = -FLT_MAX;  // finite: a logit of -inf must not make a nan
  float sum = 0;         // of exp(x - max)
  bool beaten = false;   // some class stands before the label

  template <int N>
  __device__ void add(const float (&x)[N], std::int64_t first, float own, std::int64_t label) {
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, x[i]);
    if (largest > own) beaten = true;
    if (largest == own) {
#pragma unroll
      for (int i = 0; i < N; ++i) beaten |= x[i] == own && first + i < label;
    }
    if (largest > max) {
      sum *= exponential<T>(max - largest);
      max = largest;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += exponential<T>(x[i] - max);
  }
};

template <typename T>
__device__ void store_zeros(T* row, std::int64_t packs, std::int64_t classes) {
  const float zeros[kPack] = {};
  for (std::int64_t pack = threadIdx.x; pack < packs; pack += kThreads)
    store(row, pack, Pack<T>::of(zeros));
  for (std::int64_t i = packs * kPack + threadIdx.x; i < classes; i += kThreads)
    row[i] = from_float<T>(0.0f);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) vocab_loss_kernel(const VocabLoss a) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x, packs = a.classes / kPack;
  T* logits = static_cast<T*>(a.logits) + row * a.stride;
  const float weight = a.weights[row];
  if (weight == 0) {
    if (threadIdx.x == 0) a.loss[row] = a.top1[row] = 0;
    if (a.grad_loss != nullptr) store_zeros(logits, packs, a.classes);
    return;
  }
  const std::int64_t label = a.labels[row];
  const bool known = label >= 0 && label < a.classes;
  const float own = known ? to_float(logits[label]) : nanf("");

  Part<T> part;
#pragma unroll 2
  for (std::int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    float x[kPack];
    load<T, kPack>(logits, pack).unpack(x);
    part.add(x, pack * kPack, own, label);
  }
  for (std::int64_t i = packs * kPack + threadIdx.x; i < a.classes; i += kThreads) {
    const float x[1] = {to_float(logits[i])};
    part.add(x, i, own, label);
  }
  const float max = block_max(part.max, shared);
  const float sum = block_sum(part.sum * exponential<T>(part.max - max), shared);
  const bool beaten = __syncthreads_or(part.beaten) != 0;
  if (threadIdx.x == 0) {
    const float loss = max + logf(sum) - own;
    a.loss[row] = weight * loss;
    // Beside a nan no class scores higher: only a row with a finite loss counts.
    a.top1[row] = isfinite(loss) && !beaten ? weight : 0.0f;
  }
  if (a.grad_loss == nullptr) return;

  const float factor = weight * *a.grad_loss, share = factor / sum;
  for (std::int64_t i = packs * kPack + threadIdx.x; i < a.classes; i += kThreads) {
    const float grad = exponential<T>(to_float(logits[i]) - max) * share;
    logits[i] = from_float<T>(i == label ? grad - factor : grad);
  }
  const std::int64_t rounds = (packs + kThreads - 1) / kThreads;
#pragma unroll 2
  for (std::int64_t round = rounds - 1; round >= 0; --round) {
    const std::int64_t pack = round * kThreads + threadIdx.x;
    if (pack >= packs) continue;
    float x[kPack];
    load<T, kPack>(logits, pack).unpack(x);
    const std::int64_t own_place = label - pack * kPack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      x[i] = exponential<T>(x[i] - max) * share;
      if (i == own_place) x[i] -= factor;
    }
    store(logits, pack, Pack<T>::of(x));
  }
}

__global__ void __launch_bounds__(kThreads) vocab_totals_kernel(const VocabTotals a) {
  __shared__ float shared[kWarp];
  const float* columns[] = {a.loss, a.top1, a.weights};
  const int places[] = {0, 1, 3};
  for (int k = 0; k < 3; ++k) {
    float sum = 0;
    for (std::int64_t row = threadIdx.x; row < a.rows; row += kThreads) sum += columns[k][row];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
      a.totals[places[k]] += sum;
      if (k == 0 && a.loss_sum != nullptr) *a.loss_sum = sum;
    }
  }
}

}  // namespace

void vocab_loss(const VocabLoss& args, cudaStream_t stream) {
  if (args.rows == 0 || (gpu_limits().clusters && vocab_loss_cluster(args, stream))) return;
  with_type(args.dtype, [&](auto zero) {
    vocab_loss_kernel<decltype(zero)>
        <<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  });
  check_launch("vocab_loss");
}

void vocab_totals(const VocabTotals& args, cudaStream_t stream) {
  vocab_totals_kernel<<<1, kThreads, 0, stream>>>(args);
  check_launch("vocab_totals");
}

}  // namespace dstrain::kernels::cuda
