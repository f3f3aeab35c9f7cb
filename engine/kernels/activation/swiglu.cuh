#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "engine/kernels/activation/gelu.cuh"
#include "engine/kernels/activation/kernels.h"

/// The arithmetic of the gated activation, one element at a time: the same bits in every kernel.
namespace dstrain::kernels::cuda {

template <typename T>
__device__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return reciprocal_of(1.0f + exp2_of(-kLog2E * x));
  }
}

/// The activation of a gate, and its derivative.
template <typename T, GateActivation kActivation>
__device__ Activated activated(float gate) {
  if constexpr (kActivation == GateActivation::silu) {
    const float s = sigmoid<T>(gate), y = gate * s;
    return {.y = y, .slope = fmaf(y, 1.0f - s, s)};
  } else {
    return gelu_by_tanh<T>(gate);
  }
}

struct GatedGradient {
  float gate, up, h;  ///< h as forward gives it
};
template <typename T, GateActivation kActivation>
__device__ GatedGradient gated_gradient(float gate, float up, float grad) {
  const Activated made = activated<T, kActivation>(gate);
  return {.gate = grad * up * made.slope, .up = grad * made.y, .h = made.y * up};
}

/// Calls `body` with the activation as a constant.
template <typename Body>
void with_gate(GateActivation gate, const Body& body) {
  if (gate == GateActivation::silu)
    return body(std::integral_constant<GateActivation, GateActivation::silu>{});
  body(std::integral_constant<GateActivation, GateActivation::gelu>{});
}

/// swiglu with `partial`.
void swiglu_measured(const Swiglu& args, cudaStream_t stream);

}  // namespace dstrain::kernels::cuda
