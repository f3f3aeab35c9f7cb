#include "engine/models/ensemble/member_block.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/tensor/ops_graph.h"
#include "engine/nn/block_state.h"
#include "engine/nn/class_loss.h"
#include "engine/nn/image_layers.h"

namespace dstrain {

std::string MemberPlace::prefix() const { return fmt::format("members.{}.", member); }

std::vector<BoundaryTensor> MemberPlace::with_logits(std::vector<BoundaryTensor> input,
                                                     const BatchShape& shape) const {
  if (member > 0)
    input.push_back(
        {{static_cast<std::int64_t>(member), shape.micro_batch, classes}, shape.compute_bytes});
  return input;
}

MemberBlock::MemberBlock(std::unique_ptr<ImageBlock> block, const MemberPlace& place, bool stem)
    : LayeredBlock(Works::on_images), block_(std::move(block)), place_(place), stem_(stem) {
  block_->put_under(place_.prefix());
}

Tensors MemberBlock::input_of(const Tensors& input, const Batch& batch) const {
  const std::size_t logits = place_.member > 0 ? 1 : 0;
  DSTRAIN_CHECK(input.size() == (stem_ ? 0u : 1u) + logits, name() + ": wrong number of inputs");
  if (logits == 0) return block_->input_of(input, batch);
  Batch own = batch;
  if (stem_) own.images = ops::in_graph_of(batch.images, input.back());
  Tensors list = block_->input_of(stem_ ? Tensors{} : Tensors{input.front()}, own);
  list.push_back(input.back());
  return list;
}

std::vector<BoundaryTensor> MemberBlock::input_sizes(const BatchShape& shape) const {
  return place_.with_logits(block_->input_sizes(shape), shape);
}

std::vector<Features> MemberBlock::run(LayerPass& pass, const std::vector<Features>& input) {
  std::vector<Features> output = {block_->run(pass, input.front())};
  if (place_.member > 0) output.push_back(copy(pass, input.back()));
  return output;
}

MemberHead::MemberHead(std::unique_ptr<ImageHead> head, const MemberPlace& place, LogitsMean mean)
    : LayeredBlock(Works::on_images),
      head_(std::move(head)),
      place_(place),
      mean_(std::move(mean)) {
  head_->put_under(place_.prefix());
}

Tensors MemberHead::input_of(const Tensors& input, const Batch&) const {
  DSTRAIN_CHECK(input.size() == (place_.member > 0 ? 2u : 1u), name() + ": wrong number of inputs");
  return input;
}

std::vector<BoundaryTensor> MemberHead::input_sizes(const BatchShape& shape) const {
  return place_.with_logits(head_->input_sizes(shape), shape);
}

Features MemberHead::run_logits(LayerPass& pass, const std::vector<Features>& input) {
  return join_logits(pass, place_.member > 0 ? &input.back() : nullptr,
                     head_->run_logits(pass, input.front()));
}

std::vector<Features> MemberHead::run(LayerPass& pass, const std::vector<Features>& input) {
  const Features all = run_logits(pass, input);
  return {last() ? class_loss(pass, mean_.run(pass, all)) : all};
}

}  // namespace dstrain
