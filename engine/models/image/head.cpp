#include "engine/models/image/head.h"

#include <fmt/format.h>

#include <utility>

#include "engine/nn/class_loss.h"
#include "engine/nn/image_layers.h"
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
  return layers_.conv ? layers_.conv->conv.shape().out : channels();
}

Features ImageHead::run_pooled(LayerPass& pass, const Features& x) {
  return average_pool(pass, layers_.conv ? layers_.conv->run(pass, x) : x, name() + ".pool");
}

Features ImageHead::run_logits(LayerPass& pass, const Features& input) {
  Features x =
      average_grid(pass, layers_.conv ? layers_.conv->run(pass, input) : input, layers_.grid);
  if (layers_.norm) x = layers_.norm->run(pass, {x});
  const auto drop = [&](std::size_t place) {
    return pass.drop(layers_.dropout, fmt::format("{}.dropout.{}", name(), place));
  };
  if (layers_.hidden.empty()) x = dropout(pass, x, drop(0));
  for (std::size_t i = 0; i < layers_.hidden.size(); ++i) {
    Linear& hidden = layers_.hidden[i];
    x = image_activation(pass, hidden.run(pass, x), layers_.activation,
                         hidden.parts().front().name + ".activation");
    x = dropout(pass, x, drop(i));
  }
  return layers_.classifier.run(pass, x);
}

Features ImageHead::run(LayerPass& pass, const Features& x) {
  return class_loss(pass, run_logits(pass, x));
}

}  // namespace dstrain
