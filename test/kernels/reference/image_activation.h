#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/kernels/batch_norm/activation_math.h"
#include "test/kernels/reference/reference.h"

/// What the references of batch norm and of convolutions share: the activations as their
/// definitions read, in double, and optional arguments.
namespace dstrain::kernels::reference {

inline double channel_value(const float* vector, std::int64_t channel, double otherwise) {
  return vector == nullptr ? otherwise : static_cast<double>(vector[channel]);
}

inline std::int64_t counted_samples(const std::int32_t* valid, std::int64_t samples) {
  return valid == nullptr ? samples : std::min<std::int64_t>(*valid, samples);
}

inline double activated(double z, Activation activation) {
  using enum Activation;
  switch (activation) {
    case none:
      return z;
    case relu:
      return std::max(z, 0.0);
    case relu6:
      return std::clamp(z, 0.0, 6.0);
    case silu:
      return z / (1 + std::exp(-z));
    case hardswish:
      return z * std::clamp(z + 3, 0.0, 6.0) / 6;
  }
  return z;
}

inline double activation_slope(double z, Activation activation) {
  using enum Activation;
  switch (activation) {
    case none:
      return 1;
    case relu:
      return z > 0 ? 1 : 0;
    case relu6:
      return z > 0 && z < 6 ? 1 : 0;
    case silu: {
      const double share = 1 / (1 + std::exp(-z));
      return share * (1 + z * (1 - share));
    }
    case hardswish:
      return z <= -3 ? 0 : z < 3 ? z / 3 + 0.5 : 1;
  }
  return 1;
}

}  // namespace dstrain::kernels::reference
