#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <stdexcept>
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
  for (Parameter* parameter : all_parameters(model)) {
    parameter->value = at::empty(parameter->shape, at::kFloat);
    parameter->gradient = at::zeros(parameter->shape, at::kFloat);
    source.read(*parameter, {0, parameter->numel()}, floats(parameter->value));
  }
}

/// The parts of every parameter's `member`, by name.
inline std::map<std::string, std::vector<float>> part_values(Model& model,
                                                             at::Tensor Parameter::* member) {
  std::map<std::string, std::vector<float>> values;
  for (Parameter* parameter : all_parameters(model)) {
    std::span<float> rest = floats(parameter->*member);
    for (const Piece& part : parameter->parts) {
      const auto size = static_cast<std::size_t>(num_elements(part.shape));
      values[part.name] = {rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(size)};
      rest = rest.subspan(size);
    }
  }
  return values;
}

/// Largest difference over largest value, over all tensors.
inline double worst_difference(const std::map<std::string, std::vector<float>>& a,
                               const std::map<std::string, std::vector<float>>& b) {
  double difference = 0, largest = 0;
  for (const auto& [name, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference = std::max(difference, std::abs(double{values[i]} - double{b.at(name)[i]}));
      largest = std::max(largest, std::abs(double{values[i]}));
    }
  }
  return difference / largest;
}

/// Hands `values` to an export.
inline TensorReader reader_of(const std::map<std::string, std::vector<float>>& values) {
  return [&values](const Piece& part) { return values.at(part.name); };
}

/// The weight whose first part has that name.
inline Parameter& parameter_named(const Model& model, const std::string& name) {
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->parts.at(0).name == name) return *parameter;
  }
  throw std::out_of_range(name);
}

}  // namespace dstrain::test
