#include "engine/nn/class_loss.h"

#include "engine/kernels/ops.h"

namespace dstrain {

at::Tensor class_loss(const at::Tensor& logits, const Batch& batch, const at::Tensor& weights,
                      const BlockContext& context) {
  if (context.class_scores.defined()) context.class_scores.copy_(logits.detach());
  return ops::softmax_cross_entropy(logits, batch.labels, weights, context.label_smoothing,
                                    context.totals.narrow(0, 0, kBalanceTotal), batch.second);
}

Features class_loss(LayerPass& pass, const Features& logits) {
  if (pass.costs == nullptr)
    return {.tensor = class_loss(logits.tensor, *pass.batch, pass.batch->weights, *pass.context)};
  pass.costs->add(class_loss_cost(logits.rows(), logits.columns(), logits.size.width));
  return {.size = {{}, kFloatBytes}};
}

LayerCost class_loss_cost(std::int64_t samples, std::int64_t classes, int width) {
  return {.name = "loss", .saved_bytes = samples * (classes * width + kFloatBytes)};
}

}  // namespace dstrain
