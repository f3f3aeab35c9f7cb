#include "engine/models/image/stage.h"

#include <utility>

#include "engine/kernels/pool/ops_norm_pool.h"
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

bool ConvStage::pools_in_layer() const {
  const std::optional<BatchNorm>& norm = layers_.back().norm;
  return pool_ && ops::norm_pool_fits(*pool_) &&
         (!norm || norm->activation() == ops::ImageActivation::relu);
}

Tensors ConvStage::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  const Call call = Call::of(batch, context);
  at::Tensor x = input_of(input, batch);
  for (Layer& layer : layers_) {
    const bool pools = &layer == &layers_.back() && pools_in_layer();
    if (layer.norm) {
      x = layer.conv.forward(x);
      x = pools ? layer.norm->forward_pool(x, call, *pool_) : layer.norm->forward(x, call);
    } else {
      x = pools ? layer.conv.forward_pool(x, *pool_)
                : layer.conv.forward(x, ops::ImageActivation::relu);
    }
  }
  return {pool_ && !pools_in_layer() ? ops::max_pool(x, *pool_) : x};
}

ImageShape ConvStage::add_costs(ImageCosts& costs, ImageShape shape) const {
  using enum ImageCosts::After;
  bool first = true;
  for (const Layer& layer : layers_) {
    const bool pools = &layer == &layers_.back() && pools_in_layer();
    shape = costs.conv(layer.conv, shape, std::exchange(first, false),
                       layer.norm ? nothing
                       : pools    ? relu_and_pool
                                  : relu);
    if (pools) {
      shape =
          costs.relu_max_pool(name() + ".pool", *pool_, shape, layer.norm ? &*layer.norm : nullptr);
    } else if (layer.norm) {
      shape = costs.norm(*layer.norm, shape);
    }
  }
  return pool_ && !pools_in_layer()
             ? costs.max_pool(name() + ".pool", *pool_, shape, !layers_.back().norm)
             : shape;
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
