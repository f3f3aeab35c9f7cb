#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/models/weights.h"

namespace dstrain::test {

inline std::span<float> floats(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// Gives every parameter plain fp32 tensors on the CPU: its first value from `source`, a gradient
/// of zero.
inline void bind_parameters(Model& model, const WeightSource& source) {
  for (const auto& block : model.blocks) {
    for (Parameter* parameter : block->parameters()) {
      parameter->value = at::empty(parameter->shape, at::kFloat);
      parameter->gradient = at::zeros(parameter->shape, at::kFloat);
      source.read(*parameter, {0, parameter->numel()}, floats(parameter->value));
    }
  }
}

/// The parts of every parameter's `member`, by name.
inline std::map<std::string, std::vector<float>> part_values(Model& model,
                                                             at::Tensor Parameter::* member) {
  std::map<std::string, std::vector<float>> values;
  for (const auto& block : model.blocks) {
    for (Parameter* parameter : block->parameters()) {
      const std::span<float> all = floats(parameter->*member);
      const std::size_t size = all.size() / parameter->parts.size();
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const auto part = all.subspan(i * size, size);
        values[parameter->parts[i].name] = {part.begin(), part.end()};
      }
    }
  }
  return values;
}

}  // namespace dstrain::test
