#include "engine/models/mobilenet/inverted_residual.h"

#include "engine/nn/parameter_order.h"

namespace dstrain {

std::vector<Parameter*> InvertedResidual::parameters() {
  std::vector<Parameter*> list;
  if (expand_) expand_->add_parameters(list);
  depthwise_.add_parameters(list);
  project_.add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<BlockState*> InvertedResidual::state() {
  std::vector<BlockState*> list;
  if (expand_) expand_->add_states(list);
  depthwise_.add_states(list);
  project_.add_states(list);
  return list;
}

Tensors InvertedResidual::forward(const Tensors& input, const Batch& batch,
                                  const BlockContext& context) {
  const Call call = Call::of(batch, context);
  const at::Tensor x = input_of(input, batch);
  const ops::ResidualGradient left =
      residual_ && expand_ ? ops::ResidualGradient(x) : ops::ResidualGradient();
  const at::Tensor d = depthwise_.norm.forward_depthwise(
      expand_ ? expand_->conv.forward(x, ops::ImageActivation::none, left) : x, call,
      depthwise_.conv, expand_ ? &expand_->norm : nullptr);
  return {project_.forward(d, call, residual_ ? x : at::Tensor(), left)};
}

BlockCost InvertedResidual::cost(const BatchShape& shape) const {
  ImageShape image = input_shape(shape);
  ImageCosts costs(name(), image, shape.compute_bytes);
  if (expand_) image = costs.conv(expand_->conv, image, /*kept=*/true);
  image = costs.depthwise_norm(expand_ ? &expand_->norm : nullptr, depthwise_.conv, depthwise_.norm,
                               image);
  return costs.finish(project_.add_costs(costs, image, /*kept=*/false, residual_));
}

}  // namespace dstrain
