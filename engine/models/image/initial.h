#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "engine/kernels/conv/conv.h"
#include "engine/nn/linear.h"

/// First weights as torch.nn and torchvision draw them.
namespace dstrain {

/// kaiming_normal_(mode="fan_out", nonlinearity="relu"). He et al. 2015, arXiv:1502.01852,
/// sec. 2.2.
[[nodiscard]] inline InitialWeights he_normal(const ops::ConvShape& shape) {
  const auto fan_out = static_cast<double>(shape.out * shape.kernel * shape.kernel);
  return {.kind = Init::normal, .std = std::sqrt(2 / fan_out)};
}

/// What torch.nn gives weights and biases of linear maps and convolutions: uniform within 1 /
/// sqrt(fan_in).
[[nodiscard]] inline InitialWeights torch_uniform(std::int64_t fan_in) {
  return {.kind = Init::uniform, .std = std::sqrt(1 / (3 * static_cast<double>(fan_in)))};
}

/// A classifier as torch.nn.Linear starts.
[[nodiscard]] inline Linear torch_linear(const std::string& name, std::int64_t inputs,
                                         std::int64_t outputs) {
  Linear linear({{name, outputs}}, {inputs}, torch_uniform(inputs));
  linear.bias()->init = torch_uniform(inputs).kind;
  linear.bias()->init_std = torch_uniform(inputs).std;
  return linear;
}

}  // namespace dstrain
