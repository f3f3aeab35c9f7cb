#include <cfloat>

#include "engine/kernels/device.cuh"
#include "engine/kernels/loss/kernels.h"

/// Cross entropy over a part of the classes of each row: one block a row, sums in fp32.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 512;

/// The largest value with its class, the lower one of equals.
struct Best {
  float value;
  std::int64_t index;
  __device__ void add(float other, std::int64_t at) {
    if (other > value || (other == value && at < index)) {
      value = other;
      index = at;
    }
  }
};

__device__ Best block_best(Best own, Best* shared) {
  shared[threadIdx.x] = own;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) {
      const Best other = shared[threadIdx.x + half];
      shared[threadIdx.x].add(other.value, other.index);
    }
    __syncthreads();
  }
  const Best result = shared[0];
  __syncthreads();
  return result;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) vocab_part_kernel(const VocabPart a) {
  __shared__ Best bests[kThreads];
  __shared__ float sums[kWarp];
  const std::int64_t row = blockIdx.x, packs = a.classes / kPack;
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  Best best{-FLT_MAX, a.classes};  // finite: a logit of -inf must not make a nan
  for (std::int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    float x[kPack];
    load<T, kPack>(logits, pack).unpack(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) best.add(x[i], pack * kPack + i);
  }
  for (std::int64_t i = packs * kPack + threadIdx.x; i < a.classes; i += kThreads)
    best.add(to_float(logits[i]), i);
  best = block_best(best, bests);
  float sum = 0;
  for (std::int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    float x[kPack];
    load<T, kPack>(logits, pack).unpack(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += expf(x[i] - best.value);
  }
  for (std::int64_t i = packs * kPack + threadIdx.x; i < a.classes; i += kThreads)
    sum += expf(to_float(logits[i]) - best.value);
  sum = block_sum(sum, sums);
  if (threadIdx.x != 0) return;
  const std::int64_t place = a.labels[row] - a.first_class;
  float* found = a.found + row * 4;
  found[0] = best.value;
  found[1] = sum;
  found[2] = place >= 0 && place < a.classes ? to_float(logits[place]) : 0.0f;
  found[3] = static_cast<float>(a.first_class + (best.index < a.classes ? best.index : 0));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) vocab_part_loss_kernel(const VocabPartLoss a) {
  const std::int64_t row = blockIdx.x;
  const auto found = [&](int part, int column) {
    return a.found[(part * a.rows + row) * 4 + column];
  };
  int best = 0;
  for (int part = 1; part < a.parts; ++part)
    if (found(part, 0) > found(best, 0)) best = part;
  const float max = found(best, 0);
  float sum = 0, own = 0;
  for (int part = 0; part < a.parts; ++part) {
    sum += found(part, 1) * expf(found(part, 0) - max);
    own += found(part, 2);
  }
  const std::int64_t label = a.labels[row];
  if (label < 0 || label >= a.all_classes) own = nanf("");
  const float weight = a.weights[row], loss = max + logf(sum) - own;
  if (threadIdx.x == 0) {
    a.loss[row] = weight == 0 ? 0.0f : weight * loss;
    const bool first = static_cast<std::int64_t>(found(best, 3)) == label;
    a.top1[row] = isfinite(loss) && first ? weight : 0.0f;
  }
  if (a.grad_loss == nullptr) return;
  T* logits = static_cast<T*>(a.logits) + row * a.stride;
  const float factor = weight == 0 ? 0.0f : weight * *a.grad_loss, share = factor / sum;
  const std::int64_t packs = a.classes / kPack, place = label - a.first_class;
  const auto gradient = [&](float x, std::int64_t i) {
    if (weight == 0) return 0.0f;
    const float grad = expf(x - max) * share;
    return i == place ? grad - factor : grad;
  };
  for (std::int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    float x[kPack];
    load<T, kPack>(logits, pack).unpack(x);
#pragma unroll
    for (int i = 0; i < kPack; ++i) x[i] = gradient(x[i], pack * kPack + i);
    store(logits, pack, Pack<T>::of(x));
  }
  for (std::int64_t i = packs * kPack + threadIdx.x; i < a.classes; i += kThreads)
    logits[i] = from_float<T>(gradient(to_float(logits[i]), i));
}

}  // namespace

void vocab_part(const VocabPart& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    vocab_part_kernel<decltype(zero)>
        <<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  });
  check_launch("vocab_part");
}

void vocab_part_loss(const VocabPartLoss& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    vocab_part_loss_kernel<decltype(zero)>
        <<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  });
  check_launch("vocab_part_loss");
}

}  // namespace dstrain::kernels::cuda
