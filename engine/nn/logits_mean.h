#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/nn/layer_pass.h"

namespace dstrain {

/// How the outputs of several models become one.
struct LogitsMean {
  std::vector<double> weights;  ///< of each model; their sum is 1
  bool of_probabilities = false;

  /// Logits [N, B, classes] -> [B, classes] fp32, whose softmax is that of all models: the weighted
  /// mean, or the logarithm of the weighted mean of the probabilities.
  [[nodiscard]] at::Tensor forward(const at::Tensor& logits_NBC) const;
  /// forward() or its cost, in the block that has joined the last logits to the others.
  [[nodiscard]] Features run(LayerPass& pass, const Features& logits_NBC) const;
};

/// `logits` [B, classes] behind those of other models, `before` [N, B, classes]; null: none.
[[nodiscard]] Features join_logits(LayerPass& pass, const Features* before, const Features& logits);

}  // namespace dstrain
