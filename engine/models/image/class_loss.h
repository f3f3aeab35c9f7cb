#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/block.h"

namespace dstrain {

/// What the head of every model of images returns: ops::softmax_cross_entropy of `logits`
/// [B, classes] over the batch's labels, with `weights` [B] fp32 in the place of its own. Writes
/// the logits to BlockContext::class_scores where these are asked for.
[[nodiscard]] at::Tensor class_loss(const at::Tensor& logits, const Batch& batch,
                                    const at::Tensor& weights, const BlockContext& context);
/// The same with the batch's weights.
[[nodiscard]] at::Tensor class_loss(const at::Tensor& logits, const Batch& batch,
                                    const BlockContext& context);

}  // namespace dstrain
