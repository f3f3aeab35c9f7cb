#include "engine/kernels/device.cuh"
#include "engine/kernels/loss/kernels.h"

namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTotals = 4;

/// One block a row; a row is read three times, from cache after the first.
template <typename T>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(const CrossEntropy a) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x;
  const float weight = a.weights[row];
  if (weight == 0) {
    if (threadIdx.x == 0) {
      a.log_sum_exp[row] = 0;
      for (int k = 0; k < kTotals; ++k) a.rows[k * a.batch + row] = 0;
    }
    return;
  }
  const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
  const std::int64_t label = a.labels[row];
  const bool known = label >= 0 && label < a.classes;
  const float own = known ? to_float(logits[label]) : nanf("");
  // Both labels count: the logits are weighted as their losses are.
  float target = own;
  if (a.shares != nullptr) {
    const std::int64_t second = a.second_labels[row];
    const float other = second >= 0 && second < a.classes ? to_float(logits[second]) : nanf("");
    target = a.shares[row] * own + (1 - a.shares[row]) * other;
  }

  float max = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < a.classes; i += kThreads)
    max = fmaxf(max, to_float(logits[i]));
  max = block_max(max, shared);

  float exponentials = 0, total = 0, better = 0;
  for (std::int64_t i = threadIdx.x; i < a.classes; i += kThreads) {
    const float x = to_float(logits[i]);
    exponentials += expf(x - max);
    total += x;
    if (x > own || (x == own && i < label)) better += 1;
  }
  exponentials = block_sum(exponentials, shared);
  total = block_sum(total, shared);
  better = block_sum(better, shared);

  if (threadIdx.x == 0) {
    const float log_sum_exp = max + logf(exponentials);
    const float smooth = a.smoothing * (log_sum_exp - total / static_cast<float>(a.classes));
    const float loss =
        (1 - a.smoothing) * (log_sum_exp - target) + (a.smoothing > 0 ? smooth : 0.0f);
    a.log_sum_exp[row] = log_sum_exp;
    a.rows[row] = weight * loss;
    // Beside a nan no class scores higher: only a row with a finite loss counts.
    const bool counts = isfinite(loss);
    a.rows[a.batch + row] = counts && better < 1 ? weight : 0.0f;
    a.rows[2 * a.batch + row] = counts && better < 5 ? weight : 0.0f;
    a.rows[3 * a.batch + row] = weight;
  }
}

__global__ void __launch_bounds__(kThreads) add_totals_kernel(const CrossEntropy a) {
  __shared__ float shared[kWarp];
  for (int k = 0; k < kTotals; ++k) {
    float sum = 0;
    for (std::int64_t row = threadIdx.x; row < a.batch; row += kThreads)
      sum += a.rows[k * a.batch + row];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
      if (k == 0) *a.loss = sum;
      a.totals[k] += sum;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_kernel(const CrossEntropyBackward a) {
  const std::int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
  T* grad = static_cast<T*>(a.grad_logits) + row * a.classes;
  const float weight = a.weights[row];
  if (weight == 0) {
    for (std::int64_t i = threadIdx.x; i < a.classes; i += kThreads) grad[i] = from_float<T>(0.0f);
    return;
  }
  const std::int64_t label = a.labels[row];
  const float factor = weight * *a.grad_loss, log_sum_exp = a.log_sum_exp[row];
  const float uniform = a.smoothing / static_cast<float>(a.classes);
  const std::int64_t second = a.shares == nullptr ? -1 : a.second_labels[row];
  const float share = a.shares == nullptr ? 1.0f : a.shares[row];
  for (std::int64_t i = threadIdx.x; i < a.classes; i += kThreads) {
    float target = uniform + (i == label ? share * (1 - a.smoothing) : 0.0f);
    if (i == second) target += (1 - share) * (1 - a.smoothing);
    grad[i] = from_float<T>(factor * (expf(to_float(logits[i]) - log_sum_exp) - target));
  }
}

}  // namespace

void cross_entropy(const CrossEntropy& args, cudaStream_t stream) {
  if (args.batch > 0) {
    with_type(args.dtype, [&](auto zero) {
      cross_entropy_kernel<decltype(zero)>
          <<<static_cast<unsigned>(args.batch), kThreads, 0, stream>>>(args);
    });
    check_launch("cross_entropy");
  }
  add_totals_kernel<<<1, kThreads, 0, stream>>>(args);
  check_launch("cross_entropy totals");
}

void cross_entropy_backward(const CrossEntropyBackward& args, cudaStream_t stream) {
  if (args.batch == 0) return;
  with_type(args.dtype, [&](auto zero) {
    cross_entropy_backward_kernel<decltype(zero)>
        <<<static_cast<unsigned>(args.batch), kThreads, 0, stream>>>(args);
  });
  check_launch("cross_entropy_backward");
}

}  // namespace dstrain::kernels::cuda
