#pragma once

#include "engine/mesh/split.h"
#include "engine/nn/layer_pass.h"

namespace dstrain {

/// What the head of every model of images returns: ops::softmax_cross_entropy of `logits`
/// [B, classes] over the batch's labels, or its cost; it keeps the logits and their log-sum-exp.
/// Writes the logits to BlockContext::class_scores where these are asked for. Of several tensor
/// ranks, which all have the logits, the first counts them.
[[nodiscard]] Features class_loss(LayerPass& pass, const Features& logits,
                                  const AxisPart& tensor = {});

}  // namespace dstrain
