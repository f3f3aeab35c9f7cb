#include "engine/models/image/inverted_residual.h"

#include "engine/base/stable_hash.h"
#include "engine/kernels/activation/ops_drop_path.h"
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
  const at::Tensor h = depthwise.norm.forward_depthwise(
      expand ? expand->conv.forward(x) : x, call, depthwise.conv, expand ? &expand->norm : nullptr);
  const at::Tensor p = excite ? excite->forward_conv(h, project.conv) : project.conv.forward(h);
  if (!drops() || !call.trains() || !call.dropout_seed.defined())
    return {project.norm.forward(p, call, residual ? x : at::Tensor())};
  return {ops::drop_path(
      project.norm.forward(p, call), x.size(0),
      {.share = share, .seed = call.dropout_seed, .place = stable_hash(name() + ".drop_path")}, x)};
}

BlockCost InvertedResidual::cost(const BatchShape& shape) const {
  ImageShape image = input_shape(shape);
  ImageCosts costs(name(), image, shape.compute_bytes);
  const auto& [expand, depthwise, excite, project, residual, share] = layers_;
  if (expand) image = costs.conv(expand->conv, image, /*kept=*/true);
  image =
      costs.depthwise_norm(expand ? &expand->norm : nullptr, depthwise.conv, depthwise.norm, image);
  image = excite ? excite->add_costs(costs, image, project.conv)
                 : costs.conv(project.conv, image, /*kept=*/false);
  image = costs.norm(project.norm, image, residual && !drops());
  if (drops()) costs.drop_path(image);
  return costs.finish(image);
}

}  // namespace dstrain
