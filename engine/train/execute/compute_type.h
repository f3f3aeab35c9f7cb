#pragma once

#include <c10/core/ScalarType.h>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// Type of the activations and the parameters that blocks read.
[[nodiscard]] constexpr at::ScalarType scalar_type(ComputeType type) {
  switch (type) {
    case ComputeType::fp32:
      return at::kFloat;
    case ComputeType::bf16:
    case ComputeType::fp8:  // what is not multiplied in 8 bits
      return at::kBFloat16;
    case ComputeType::fp16:
      return at::kHalf;
    case ComputeType::automatic:  // settle_compute() has chosen one
      break;
  }
  return at::kFloat;
}

}  // namespace dstrain
