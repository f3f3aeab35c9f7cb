#include "engine/models/image/head.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/stable_hash.h"
#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/conv/ops_activation.h"
#include "engine/kernels/pool/ops_pool.h"
#include "engine/models/image/class_loss.h"
#include "engine/nn/parameter_order.h"

namespace dstrain {

std::vector<Parameter*> ImageHead::parameters() {
  std::vector<Parameter*> list;
  if (layers_.conv) layers_.conv->add_parameters(list);
  if (layers_.norm) layers_.norm->add_parameters(list);
  for (Linear& linear : layers_.hidden) linear.add_parameters(list);
  layers_.classifier.add_parameters(list);
  return matrices_first(std::move(list));
}

std::vector<BlockState*> ImageHead::state() {
  std::vector<BlockState*> list;
  if (layers_.conv) layers_.conv->add_states(list);
  return list;
}

std::vector<Parameter*> ImageHead::pooled_parameters() {
  std::vector<Parameter*> list;
  if (layers_.conv) layers_.conv->add_parameters(list);
  return matrices_first(std::move(list));
}

std::int64_t ImageHead::pooled_channels() const {
  return layers_.conv ? layers_.conv->conv.shape().out : input_shape({}).channels;
}

at::Tensor ImageHead::pooled(const Tensors& input, const Call& call) {
  return ops::average_pool(layers_.conv ? layers_.conv->forward(input.at(0), call) : input.at(0));
}

ImageCosts ImageHead::pooled_costs(const BatchShape& shape) const {
  ImageShape image = input_shape(shape);
  ImageCosts costs(name(), image, shape.compute_bytes);
  if (layers_.conv) image = layers_.conv->add_costs(costs, image, /*kept=*/true);
  costs.average_pool(name() + ".pool", image);
  return costs;
}

at::Tensor ImageHead::features(const at::Tensor& x_BHWC) const {
  if (layers_.grid == 1) return ops::average_pool(x_BHWC);
  const at::Tensor grid = ops::average_grid(x_BHWC, layers_.grid);
  return grid.permute({0, 3, 1, 2}).reshape({grid.size(0), -1});
}

at::Tensor ImageHead::drop(const at::Tensor& x, std::size_t place, const Call& call) const {
  if (layers_.dropout == 0 || !call.trains() || !call.dropout_seed.defined()) return x;
  return ops::dropout(x, {.share = layers_.dropout,
                          .seed = call.dropout_seed,
                          .place = stable_hash(fmt::format("{}.dropout.{}", name(), place))});
}

at::Tensor ImageHead::logits(const Tensors& input, const Call& call) {
  at::Tensor x = features(layers_.conv ? layers_.conv->forward(input.at(0), call) : input.at(0));
  if (layers_.norm) x = layers_.norm->forward(x, std::nullopt).second;
  if (layers_.hidden.empty()) x = drop(x, 0, call);
  for (std::size_t i = 0; i < layers_.hidden.size(); ++i)
    x = drop(ops::image_activation(layers_.hidden[i].forward(x), layers_.activation), i, call);
  return layers_.classifier.forward(x);
}

Tensors ImageHead::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  return {class_loss(logits(input, Call::of(batch, context)), batch, context)};
}

ImageCosts ImageHead::logits_costs(const BatchShape& shape) const {
  const std::int64_t samples = shape.micro_batch;
  ImageShape image = input_shape(shape);
  ImageCosts costs(name(), image, shape.compute_bytes);
  if (layers_.conv) image = layers_.conv->add_costs(costs, image, /*kept=*/true);
  if (layers_.norm) costs.layer_norm(*layers_.norm, samples, /*kept=*/false);
  for (const Linear& linear : layers_.hidden) {
    costs.linear(linear, samples);
    costs.activation(linear, samples);
  }
  costs.linear(layers_.classifier, samples);
  return costs;
}

BlockCost ImageHead::cost(const BatchShape& shape) const {
  ImageCosts costs = logits_costs(shape);
  costs.add(class_loss_cost(shape.micro_batch, layers_.classifier.parts().front().rows,
                            shape.compute_bytes));
  return costs.finish({{{}, kFloatBytes}});
}

}  // namespace dstrain
