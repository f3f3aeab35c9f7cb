#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dstrain {

/// A tensor as checkpoint and Hugging Face files name it.
struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

enum class Init { zeros, ones, truncated_normal };  ///< truncated_normal: mean 0, std `init_std`, cut at 2 std

/// A weight of a block. It owns no memory: the state store binds `value` and `gradient` to its flat buffers, and under
/// ZeRO-3 binds `value` anew at each gather. Operators write gradients straight into `gradient`, adding.
struct Parameter {
  /// Stacked along dim 0; more than one where files keep apart what we multiply at once (query, key, value).
  std::vector<NamedShape> parts;
  std::vector<std::int64_t> shape;
  Init init = Init::zeros;
  double init_std = 0.02;

  at::Tensor value;     ///< compute dtype, `shape`; undefined while released
  at::Tensor gradient;  ///< fp32, `shape`; undefined outside backward

  [[nodiscard]] std::int64_t numel() const {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

}  // namespace dstrain
