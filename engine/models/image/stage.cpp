#include "engine/models/image/stage.h"

#include "engine/nn/parameter_order.h"

namespace dstrain {

std::vector<Parameter*> ConvStage::parameters() {
  std::vector<Parameter*> list;
  for (Layer& layer : layers_) {
    layer.conv.add_parameters(list);
    if (layer.norm) layer.norm->add_parameters(list);
  }
  return matrices_first(std::move(list));
}

std::vector<BlockState*> ConvStage::state() {
  std::vector<BlockState*> list;
  for (Layer& layer : layers_) {
    if (layer.norm) layer.norm->add_states(list);
  }
  return list;
}

Tensors ConvStage::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  const Call call = Call::of(batch, context);
  at::Tensor x = input_of(input, batch);
  for (Layer& layer : layers_) {
    x = layer.norm ? layer.norm->forward(layer.conv.forward(x), call)
                   : layer.conv.forward(x, ops::ImageActivation::relu);
  }
  return {pool_ ? ops::max_pool(x, *pool_) : x};
}

ImageShape ConvStage::add_costs(ImageCosts& costs, ImageShape shape) const {
  bool first = true;
  for (const Layer& layer : layers_) {
    shape = costs.conv(layer.conv, shape, std::exchange(first, false), !layer.norm);
    if (layer.norm) shape = costs.norm(*layer.norm, shape);
  }
  return pool_ ? costs.max_pool(name() + ".pool", *pool_, shape, !layers_.back().norm) : shape;
}

BlockCost ConvStage::cost(const BatchShape& shape) const {
  ImageCosts costs(name(), input_shape(shape), shape.compute_bytes);
  return costs.finish(add_costs(costs, input_shape(shape)));
}

FeatureSize ConvStage::output() const {
  const ImageShape input = input_shape({.micro_batch = 1});
  ImageCosts unused(name(), input, 1);
  const ImageShape output = add_costs(unused, input);
  return {output.height, output.width, output.channels};
}

}  // namespace dstrain
