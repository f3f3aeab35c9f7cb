#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/linear.h"

namespace dstrain {

/// The feed-forward branch: linear, exact GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415), linear.
class Mlp {
 public:
  /// `up` and `down` are what files call the two linears.
  Mlp(const std::string& up, const std::string& down, std::int64_t width, std::int64_t mlp_width,
      double init_std);

  /// x [M, D] -> [M, D].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_MD);

  void add_parameters(std::vector<Parameter*>& list);
  /// Forward, for `rows` rows of x.
  [[nodiscard]] Flops flops(std::int64_t rows) const { return up_.flops(rows) + down_.flops(rows); }

 private:
  Linear up_;
  Linear down_;
};

}  // namespace dstrain
