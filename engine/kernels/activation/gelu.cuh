#pragma once

#include <type_traits>

#include "engine/kernels/device.cuh"

/// The arithmetic of GELU by tanh, one element at a time: the same bits in every kernel.
namespace dstrain::kernels::cuda {

struct Activated {
  float y, slope;  ///< the activation of x, and its derivative
};

/// By sigmoid(2u), which is 0.5 (1 + tanh(u)).
template <typename T>
__device__ Activated gelu_by_tanh(float x) {
  constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;  // 2 sqrt(2/pi)
  const float square = x * x;
  const float u2 = kTwice * x * (1.0f + kCubic * square);
  float share;
  if constexpr (std::is_same_v<T, float>) {
    share = 1.0f / (1.0f + expf(-u2));
  } else {
    share = reciprocal_of(1.0f + exp2_of(-kLog2E * u2));
  }
  const float y = x * share;
  return {y, share + y * (1.0f - share) * kTwice * (1.0f + 3.0f * kCubic * square)};
}

}  // namespace dstrain::kernels::cuda
