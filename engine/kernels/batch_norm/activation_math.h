#pragma once

#include <cmath>
#include <limits>

#include "engine/base/philox.h"

/// Activations of convolutional networks, as the kernels apply them on load; the same code on GPU
/// and host.
namespace dstrain::kernels {

/// relu6: min(max(z, 0), 6). silu: z sigmoid(z), Hendrycks & Gimpel 2016, arXiv:1606.08415.
/// hardswish: z min(max(z + 3, 0), 6) / 6, Howard et al. 2019, arXiv:1905.02244, sec. 5.2.
enum class Activation { none, relu, relu6, silu, hardswish };

namespace activation_math {

inline constexpr float kInfinite = std::numeric_limits<float>::infinity();

/// min(max(z, low), high), where nan stays nan. On a GPU equal bits whatever its compute
/// capability: -0 becomes a low of 0, and every nan the same.
DSTRAIN_HOST_DEVICE float clamped(float z, float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return z != z ? __int_as_float(0x7fffffff) : fminf(fmaxf(z, low), high);
#elif defined(__CUDA_ARCH__)
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(z), "f"(low));
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(y), "f"(high));
  return y;
#else
  return z < low ? low : z > high ? high : z;
#endif
}

/// 1 / (1 + exp(-z)); `kExact` for fp32, else by the quick functions of the GPU, whose error of
/// 2^-21 is far below the rounding of 16-bit types. Subnormal numbers are taken as zero: without
/// that the quick functions scale their arguments, which are as many instructions again.
template <bool kExact>
DSTRAIN_HOST_DEVICE float sigmoid(float z) {
#if defined(__CUDA_ARCH__)
  if constexpr (!kExact) {
    float power, share;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
    return share;
  }
#endif
  return 1.0f / (1.0f + expf(-z));
}

/// The activation and its derivative; at a corner that of PyTorch.
struct Value {
  float y, slope;
};

/// none, relu and relu6.
struct Clamp {
  float low, high;
  DSTRAIN_HOST_DEVICE float value(float z) const { return clamped(z, low, high); }
  DSTRAIN_HOST_DEVICE Value both(float z) const {
    return {clamped(z, low, high), z > low && z < high ? 1.0f : 0.0f};
  }
  /// grad times the derivative.
  DSTRAIN_HOST_DEVICE float through(float z, float grad) const {
    return z > low && z < high ? grad : 0.0f;
  }
};

template <bool kExact>
struct Silu {
  DSTRAIN_HOST_DEVICE float value(float z) const { return z * sigmoid<kExact>(z); }
  DSTRAIN_HOST_DEVICE Value both(float z) const {
    const float share = sigmoid<kExact>(z);
    return {z * share, share * (1.0f + z * (1.0f - share))};
  }
  DSTRAIN_HOST_DEVICE float through(float z, float grad) const { return grad * both(z).slope; }
};

struct Hardswish {
  DSTRAIN_HOST_DEVICE float value(float z) const {
    return z * clamped(z + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f);
  }
  DSTRAIN_HOST_DEVICE Value both(float z) const {
    const float slope = z <= -3.0f ? 0.0f : z < 3.0f ? z * (1.0f / 3.0f) + 0.5f : 1.0f;
    return {value(z), slope};
  }
  DSTRAIN_HOST_DEVICE float through(float z, float grad) const { return grad * both(z).slope; }
};

/// Calls body(rule) with the rule of `activation`: one branch for many elements.
template <bool kExact, typename Body>
DSTRAIN_HOST_DEVICE void with_activation(Activation activation, const Body& body) {
  if (activation == Activation::silu) {
    body(Silu<kExact>{});
  } else if (activation == Activation::hardswish) {
    body(Hardswish{});
  } else {
    body(Clamp{activation == Activation::none ? -kInfinite : 0.0f,
               activation == Activation::relu6 ? 6.0f : kInfinite});
  }
}

}  // namespace activation_math
}  // namespace dstrain::kernels
