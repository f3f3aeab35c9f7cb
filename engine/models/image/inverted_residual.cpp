#include "engine/models/image/inverted_residual.h"

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

Features InvertedResidual::run(LayerPass& pass, const Features& x) {
  auto& [expand, depthwise, excite, project, residual, share] = layers_;
  const ops::ResidualGradient left =
      residual && expand ? ops::ResidualGradient(x.tensor) : ops::ResidualGradient();
  const Features h = expand ? expand->conv.run(pass, x, ops::ImageActivation::none, left) : x;
  BatchNorm* before = expand ? &expand->norm : nullptr;
  const Features p =
      excite
          ? excite->run(pass, h, before, depthwise, project.conv)
          : project.conv.run(pass, depthwise.norm.run_depthwise(pass, h, depthwise.conv, before));
  if (!residual) return project.norm.run(pass, p);
  return project.norm.run(
      pass, p, {.residual = &x, .left = left, .drop = pass.drop(share, name() + ".drop_path")});
}

}  // namespace dstrain
