#include "engine/models/image/inverted_residual.h"

#include "engine/base/stable_hash.h"
#include "engine/nn/parameter_order.h"

namespace dstrain {

std::vector<Parameter*> InvertedResidual::parameters() {
  std::vector<Parameter*> list;
  if (layers_.expand) layers_.expand->add_parameters(list);
  layers_.depthwise.add_parameters(list);
  if (layers_.excite) layers_.excite->add_parameters(list);
  layers_.project.add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<BlockState*> InvertedResidual::state() {
  std::vector<BlockState*> list;
  if (layers_.expand) layers_.expand->add_states(list);
  layers_.depthwise.add_states(list);
  layers_.project.add_states(list);
  return list;
}

Tensors InvertedResidual::forward(const Tensors& input, const Batch& batch,
                                  const BlockContext& context) {
  const Call call = Call::of(batch, context);
  const at::Tensor x = input_of(input, batch);
  auto& [expand, depthwise, excite, project, residual, share] = layers_;
  const ops::ResidualGradient left =
      residual && expand ? ops::ResidualGradient(x) : ops::ResidualGradient();
  const at::Tensor h = expand ? expand->conv.forward(x, ops::ImageActivation::none, left) : x;
  BatchNorm* before = expand ? &expand->norm : nullptr;
  const at::Tensor p =
      excite
          ? depthwise.norm.forward_excited(h, call, depthwise.conv, before, excite->call(),
                                           project.conv)
          : project.conv.forward(depthwise.norm.forward_depthwise(h, call, depthwise.conv, before));
  ops::DropMask drop;
  if (drops() && call.trains() && call.dropout_seed.defined()) {
    drop = {.share = share, .seed = call.dropout_seed, .place = stable_hash(name() + ".drop_path")};
  }
  return {project.norm.forward(p, call, residual ? x : at::Tensor(), left, drop)};
}

BlockCost InvertedResidual::cost(const BatchShape& shape) const {
  ImageShape image = input_shape(shape);
  ImageCosts costs(name(), image, shape.compute_bytes);
  const auto& [expand, depthwise, excite, project, residual, share] = layers_;
  if (expand) image = costs.conv(expand->conv, image, /*kept=*/true);
  const ImageShape expanded = image;
  image = costs.depthwise_norm(expand ? &expand->norm : nullptr, depthwise.conv, depthwise.norm,
                               image, excite.has_value());
  image = excite ? excite->add_costs(costs, expanded, image, project.conv)
                 : costs.conv(project.conv, image, /*kept=*/false);
  return costs.finish(costs.norm(project.norm, image, residual));
}

}  // namespace dstrain
