#include "engine/models/cnn_lstm/blocks.h"

#include <ATen/TensorOperators.h>

#include "engine/base/stable_hash.h"
#include "engine/kernels/activation/ops_dropout.h"
#include "engine/models/image/class_loss.h"
#include "engine/nn/call.h"
#include "engine/nn/parameter_order.h"

namespace dstrain {
namespace {

/// The batch whose samples are the frames.
Batch batch_of_frames(const Batch& batch, std::int64_t frames) {
  Batch images = {.images = batch.images};
  if (batch.valid.defined()) images.valid = batch.valid * frames;
  return images;
}

BatchShape shape_of_frames(const BatchShape& shape, std::int64_t frames) {
  return {.micro_batch = shape.micro_batch * frames, .compute_bytes = shape.compute_bytes};
}

}  // namespace

Tensors TrunkBlock::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  return block_->forward(input, batch_of_frames(batch, frames_), context);
}

BlockCost TrunkBlock::cost(const BatchShape& shape) const {
  return block_->cost(shape_of_frames(shape, frames_));
}

LstmHead::LstmHead(std::unique_ptr<ImageHead> trunk, std::int64_t frames, Lstm lstm,
                   Linear classifier, double dropout)
    : name_("lstm"),
      trunk_(std::move(trunk)),
      frames_(frames),
      lstm_(std::move(lstm)),
      classifier_(std::move(classifier)),
      dropout_(dropout) {}

std::vector<Parameter*> LstmHead::parameters() {
  std::vector<Parameter*> list = trunk_->pooled_parameters();
  lstm_.add_parameters(list);
  classifier_.add_parameters(list);
  return matrices_first(std::move(list));
}

at::Tensor LstmHead::logits(const Tensors& input, const Batch& batch, const BlockContext& context) {
  const at::Tensor features =
      trunk_->pooled(input, Call::of(batch_of_frames(batch, frames_), context));
  at::Tensor last = lstm_.forward(features, features.size(0) / frames_);
  if (dropout_ > 0 && context.dropout_seed.defined() && Call::of(batch, context).trains())
    last = ops::dropout(last, {.share = dropout_,
                               .seed = context.dropout_seed,
                               .place = stable_hash(name_ + ".dropout")});
  return classifier_.forward(last);
}

Tensors LstmHead::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  return {class_loss(logits(input, batch, context), batch, context)};
}

BlockCost LstmHead::cost(const BatchShape& shape) const {
  ImageCosts costs = trunk_->pooled_costs(shape_of_frames(shape, frames_));
  const std::int64_t samples = shape.micro_batch, classes = classifier_.parts().front().rows;
  lstm_.add_costs(costs, samples, frames_, shape.compute_bytes);
  costs.linear(classifier_, samples);
  costs.add(class_loss_cost(samples, classes, shape.compute_bytes));
  BlockCost cost = costs.finish({{{}, kFloatBytes}});
  cost.name = name_;
  return cost;
}

}  // namespace dstrain
