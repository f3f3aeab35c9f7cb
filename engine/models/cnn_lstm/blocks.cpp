#include "engine/models/cnn_lstm/blocks.h"

#include <ATen/TensorOperators.h>

#include "engine/nn/class_loss.h"
#include "engine/nn/image_layers.h"
#include "engine/nn/parameter_order.h"

namespace dstrain {
namespace {

/// The batch whose samples are the frames.
Batch batch_of_frames(const Batch& batch, std::int64_t frames) {
  Batch images = {.images = batch.images};
  if (batch.valid.defined()) images.valid = batch.valid * frames;
  return images;
}

BatchShape shape_of_frames(BatchShape shape, std::int64_t frames) {
  shape.micro_batch *= frames;
  return shape;
}

}  // namespace

Tensors TrunkBlock::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  return block_->forward(input, batch_of_frames(batch, frames_), context);
}

BlockCost TrunkBlock::cost(const BatchShape& shape) {
  return block_->cost(shape_of_frames(shape, frames_));
}

LstmHead::LstmHead(std::unique_ptr<ImageHead> trunk, std::int64_t frames, Lstm lstm,
                   Linear classifier, double dropout)
    : LayeredBlock(Works::on_images),
      name_("lstm"),
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

std::vector<BoundaryTensor> LstmHead::input_sizes(const BatchShape& shape) const {
  return trunk_->input_sizes(shape_of_frames(shape, frames_));
}

Features LstmHead::run_logits(LayerPass& pass, const Features& x) {
  LayerPass of_frames = pass;
  if (pass.call.valid.defined()) of_frames.call.valid = pass.call.valid * frames_;
  const Features last = lstm_.run(pass, trunk_->run_pooled(of_frames, x), frames_);
  return classifier_.run(pass, dropout(pass, last, pass.drop(dropout_, name_ + ".dropout")));
}

std::vector<Features> LstmHead::run(LayerPass& pass, const std::vector<Features>& input) {
  return {class_loss(pass, run_logits(pass, input.at(0)))};
}

}  // namespace dstrain
