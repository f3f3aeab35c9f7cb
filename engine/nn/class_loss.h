#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/layer_pass.h"

namespace dstrain {

/// What the head of every model of images returns: ops::softmax_cross_entropy of `logits`
/// [B, classes] over the batch's labels, with `weights` [B] fp32 in the place of its own. Writes
/// the logits to BlockContext::class_scores where these are asked for.
[[nodiscard]] at::Tensor class_loss(const at::Tensor& logits, const Batch& batch,
                                    const at::Tensor& weights, const BlockContext& context);
/// The same with the batch's weights, or its cost.
[[nodiscard]] Features class_loss(LayerPass& pass, const Features& logits);
/// It keeps logits [samples, classes], of `width` bytes each, and their log-sum-exp.
[[nodiscard]] LayerCost class_loss_cost(std::int64_t samples, std::int64_t classes, int width);

}  // namespace dstrain
