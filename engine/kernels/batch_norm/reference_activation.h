#pragma once

#include <algorithm>
#include <cmath>

#include "engine/kernels/batch_norm/activation_math.h"

/// The activations as their definitions read, in double.
namespace dstrain::kernels::reference {

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
