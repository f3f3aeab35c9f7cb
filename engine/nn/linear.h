#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/kernels/parameter.h"

namespace dstrain {

/// y = x weight^T + bias. Several `prefixes` are as many matrices that files keep apart and we
/// multiply at once.
class Linear {
 public:
  /// Files name the tensors PREFIX.weight, of `weight_shape` [N, ...], and PREFIX.bias, [N].
  /// Weights start as a truncated normal of `init_std`, biases at zero.
  Linear(const std::vector<std::string>& prefixes, const std::vector<std::int64_t>& weight_shape,
         double init_std);

  /// x [M, K] -> [M, N], N over all prefixes.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_MK);
  /// The same with the exact GELU applied to the result.
  [[nodiscard]] at::Tensor forward_gelu(const at::Tensor& x_MK);

  void add_parameters(std::vector<Parameter*>& list) {
    list.insert(list.end(), {&weight_, &bias_});
  }
  /// Forward, for `rows` rows of x.
  [[nodiscard]] Flops flops(std::int64_t rows) const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(weight_.numel());
  }

 private:
  Parameter weight_;
  Parameter bias_;
};

}  // namespace dstrain
