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

/// The gradient of its weight comes with the others.
inline void put_nothing_off(LayerCost& cost) {
  cost.weight_flops = 0;
  cost.held_bytes = 0;
}

/// What files call the layer of `parameter`: "NAME.weight" is of NAME.
[[nodiscard]] inline std::string layer_name_of(const Parameter& parameter) {
  const std::string& name = parameter.parts.front().name;
  return name.substr(0, name.rfind('.'));
}

}  // namespace dstrain
