#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "engine/kernels/activation/kernels.h"

/// The arithmetic of the gated activation, one element at a time: the same bits in every kernel.
namespace dstrain::kernels::cuda {

template <typename T>
__device__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return __fdividef(1.0f, 1.0f + __expf(-x));
  }
}

template <typename T>
__device__ float silu(float x) {
  return x * sigmoid<T>(x);
}

template <typename T>
__device__ float gated(float gate, float up) {
  return silu<T>(gate) * up;
}

struct GatedGradient {
  float gate, up, h;  ///< h as `gated` gives it
};
template <typename T>
__device__ GatedGradient gated_gradient(float gate, float up, float grad) {
  const float s = sigmoid<T>(gate), silu = gate * s;
  return {.gate = grad * up * fmaf(silu, 1.0f - s, s), .up = grad * silu, .h = silu * up};
}

/// swiglu with `partial`.
void swiglu_measured(const Swiglu& args, cudaStream_t stream);

}  // namespace dstrain::kernels::cuda
