#include "engine/models/convnext/blocks.h"

#include <utility>

#include "engine/models/random_weights.h"
#include "engine/nn/image_layers.h"
#include "engine/nn/parameter_order.h"

namespace dstrain {
namespace {

/// The value of torchvision and timm: branches start at a millionth.
constexpr double kFirstScale = 1e-6;

}  // namespace

std::vector<Parameter*> PatchConv::parameters() {
  std::vector<Parameter*> list;
  conv_.add_parameters(list);
  norm_.add_parameters(list);
  return matrices_first(std::move(list));
}

Features PatchConv::run(LayerPass& pass, const Features& x) {
  if (norm_first_) return conv_.run(pass, norm_.run(pass, {x}));
  return norm_.run(pass, {conv_.run(pass, x)});
}

ConvNextBlock::ConvNextBlock(const std::string& name, const FeatureSize& input,
                             ConvNextLayers layers)
    : ImageBlock(name, input, /*stem=*/false), layers_(std::move(layers)) {
  // Files have it as [C, 1, 1]; it is a vector.
  scale_.hold({{layers_.scale, {input.channels, 1, 1}}});
  scale_.shape = {input.channels};
  scale_.init = Init::constant;
  scale_.init_std = kFirstScale;
}

std::vector<Parameter*> ConvNextBlock::parameters() {
  std::vector<Parameter*> list;
  layers_.depthwise.add_parameters(list);
  layers_.norm.add_parameters(list);
  layers_.mlp.add_parameters(list);
  list.push_back(&scale_);
  return matrices_first(std::move(list));
}

Features ConvNextBlock::run(LayerPass& pass, const Features& x) {
  const Features h = layers_.norm.run(pass, {layers_.depthwise.run(pass, x)});
  // The branch's output, and the input's gradient by the residual.
  const Features made = layers_.mlp.run(pass, h, {.forward = h.bytes(), .backward = 2 * h.bytes()});
  return layer_scale(pass, made, scale_, pass.drop(layers_.drop_path, name() + ".drop_path"), x);
}

}  // namespace dstrain
