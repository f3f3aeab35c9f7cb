#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/linear.h"

namespace dstrain {

/// What files call the projections of one attention.
struct AttentionNames {
  std::string query, key, value, output;
};

/// Multi-head self-attention over all tokens of a sample: one product for query, key and value,
/// softmax attention, output projection. Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.
class SelfAttention {
 public:
  SelfAttention(const AttentionNames& names, std::int64_t width, std::int64_t heads,
                double init_std);

  /// x [B * T, D] -> [B * T, D].
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_MD, std::int64_t batch);

  void add_parameters(std::vector<Parameter*>& list);
  /// Forward, for `batch` samples of `tokens` tokens.
  [[nodiscard]] Flops flops(std::int64_t batch, std::int64_t tokens) const;

 private:
  std::int64_t width_;
  std::int64_t heads_;
  Linear qkv_;
  Linear output_;
};

}  // namespace dstrain
