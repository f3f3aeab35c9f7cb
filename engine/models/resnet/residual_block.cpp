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

Features ResidualBlock::run(LayerPass& pass, const Features& x) {
  ConvNorm& first = branch_.front();
  // The shortcut's part of x's gradient, to which the product of the branch adds.
  const ops::ResidualGradient left =
      first.conv.shape().pointwise() ? ops::ResidualGradient(x.tensor) : ops::ResidualGradient();
  Features h = first.norm.run(pass, first.conv.run(pass, x, ops::ImageActivation::none, left));
  for (std::size_t i = 1; i + 1 < branch_.size(); ++i) h = branch_[i].run(pass, h);
  if (shortcut_) return branch_.back().run_pair(pass, h, *shortcut_, x, left);
  return branch_.back().run(pass, h, {.residual = &x, .left = left});
}

}  // namespace dstrain
