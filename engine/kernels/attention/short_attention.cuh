#pragma once

#include <cmath>
#include <string>

#include "engine/kernels/attention/short_attention.h"
#include "engine/kernels/device.cuh"
#include "engine/kernels/gpu.h"
#include "engine/kernels/tensor_cores.cuh"

/// What the kernels of short_attention.cu and short_attention_sm90.cu share.
namespace dstrain::kernels::cuda {

constexpr float kLn2 = 0.6931471805599453f;

/// Scores are taken in units of log2, less the largest one seen so far, or one that is at most this
/// much below it: then no sum has to be scaled again, and no exponential grows beyond 2^8.
constexpr float kSlack = 8;

/// One head of one sample.
template <typename T>
struct Head {
  T* rows;
  std::int64_t stride;
  __device__ Head(const HeadsView& view, std::int64_t sample, std::int64_t head)
      : rows(static_cast<T*>(view.data) + sample * view.batch + head * view.head),
        stride(view.token) {}
};

template <int kCount>
__device__ void clear(float (&sums)[kCount][4]) {
#pragma unroll
  for (auto& tile : sums) {
#pragma unroll
    for (float& x : tile) x = 0;
  }
}

/// What a row's gradients of scores need: logarithm of its sum in units of log2, and the sum of its
/// output times that one's gradient.
struct RowFacts {
  float log_sum, product;
};

/// Gradient of scores without the scale, and probabilities, from scores and gradients of these.
__device__ inline float grad_of(float& score, float grad, float scale, const RowFacts& row) {
  score = exp2_of(fmaf(score, scale, -row.log_sum));
  return score * (grad - row.product);
}

/// Calls body<T, width>() for what `a` holds.
template <typename Body>
void with_heads(const ShortAttention& a, const Body& body) {
  if (a.tokens > short_attention_max_tokens(a.head_dim, gpu_limits()) || a.tokens < 1 ||
      a.dtype == DType::f32)
    throw Error(ErrorKind::internal, "short attention: " + std::to_string(a.tokens) +
                                         " tokens, heads of " + std::to_string(a.head_dim));
  check_products("short_attention", a.dtype);
  with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (a.head_dim == 64) {
        body.template operator()<T, 64>();
      } else {
        body.template operator()<T, 80>();
      }
    }
  });
}

}  // namespace dstrain::kernels::cuda
