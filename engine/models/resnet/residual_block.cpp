#include "engine/models/resnet/residual_block.h"

#include "engine/nn/parameter_order.h"

namespace dstrain {

std::vector<Parameter*> ResidualBlock::parameters() {
  std::vector<Parameter*> list;
  for (ConvNorm& layer : branch_) layer.add_parameters(list);
  if (shortcut_) shortcut_->add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<BlockState*> ResidualBlock::state() {
  std::vector<BlockState*> list;
  for (ConvNorm& layer : branch_) layer.add_states(list);
  if (shortcut_) shortcut_->add_states(list);
  return list;
}

Tensors ResidualBlock::forward(const Tensors& input, const Batch& batch,
                               const BlockContext& context) {
  const Call call = Call::of(batch, context);
  const at::Tensor x = input_of(input, batch);
  ConvNorm& first = branch_.front();
  // The shortcut's part of x's gradient, to which the product of the branch adds.
  const ops::ResidualGradient left =
      first.conv.shape().pointwise() ? ops::ResidualGradient(x) : ops::ResidualGradient();
  at::Tensor h = first.norm.forward(first.conv.forward(x, ops::ImageActivation::none, left), call);
  for (std::size_t i = 1; i + 1 < branch_.size(); ++i) h = branch_[i].forward(h, call);
  if (!shortcut_) return {branch_.back().forward(h, call, x, left)};
  // It runs behind the branch's first product, so that autograd comes back to it before that.
  const at::Tensor other = shortcut_->conv.forward(x, ops::ImageActivation::none, {}, left);
  ConvNorm& last = branch_.back();
  return {last.norm.forward_pair(last.conv.forward(h), call, other, shortcut_->norm)};
}

BlockCost ResidualBlock::cost(const BatchShape& shape) const {
  const ImageShape input = input_shape(shape);
  ImageCosts costs(name(), input, shape.compute_bytes);
  ImageShape image = input;
  for (std::size_t i = 0; i < branch_.size(); ++i)
    image = branch_[i].add_costs(costs, image, /*kept=*/i == 0, i + 1 == branch_.size());
  if (shortcut_) {
    costs.norm_beside(shortcut_->norm, costs.conv(shortcut_->conv, input, /*kept=*/true));
  }
  return costs.finish(image);
}

}  // namespace dstrain
