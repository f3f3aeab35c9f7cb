#include "engine/nn/class_loss.h"

#include <ATen/TensorOperators.h>

#include <utility>

#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"

namespace dstrain {
namespace {

at::Tensor run_loss(const at::Tensor& logits, const LayerPass& pass) {
  const Batch& batch = *pass.batch;
  const BlockContext& context = *pass.context;
  if (context.class_scores.defined()) context.class_scores.copy_(logits.detach());
  Communicator* ranks = pass.call.tensor();
  // A sample of weight 0 adds nothing to loss, gradients and totals.
  const at::Tensor weights =
      ranks == nullptr ? batch.weights : batch.weights * (ranks->rank() == 0 ? 1 : 0);
  return ops::softmax_cross_entropy(logits, batch.labels, weights, context.label_smoothing,
                                    context.totals.narrow(0, 0, kBalanceTotal), batch.second);
}

}  // namespace

Features class_loss(LayerPass& pass, const Features& logits, const AxisPart& tensor) {
  if (pass.costs == nullptr) return {.tensor = run_loss(logits.tensor, pass)};
  const std::int64_t samples = logits.rows();
  const Bytes row = samples * kFloatBytes, weights = tensor.whole() ? 0 : row;
  LayerCost layer{.name = "loss", .saved_bytes = logits.bytes() + row + weights};
  if (pass.costs->on_images()) {
    pass.costs->add(std::move(layer));
  } else {
    pass.costs->add_to_last(layer);  // the classifier
  }
  // Terms of the loss; backward, the gradient of the logits.
  pass.costs->hold_also(4 * row, logits.bytes());
  return {.size = {{}, kFloatBytes}};
}

}  // namespace dstrain
