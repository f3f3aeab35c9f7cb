#pragma once

#include <string>

#include "engine/kernels/parameter.h"
#include "engine/program/cost.h"

namespace dstrain {

/// Adds the elements of `parameter`.
inline void count(const Parameter& parameter, LayerCost& cost) {
  cost.parameters += parameter.numel();
  if (parameter.trainable) cost.trained += parameter.numel();
}

/// What files call the layer of `parameter`: "NAME.weight" is of NAME.
[[nodiscard]] inline std::string layer_name_of(const Parameter& parameter) {
  const std::string& name = parameter.parts.front().name;
  return name.substr(0, name.rfind('.'));
}

}  // namespace dstrain
