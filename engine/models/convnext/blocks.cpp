#include "engine/models/convnext/blocks.h"

#include <utility>

#include "engine/base/stable_hash.h"
#include "engine/kernels/activation/ops_layer_scale.h"
#include "engine/models/random_weights.h"
#include "engine/nn/image_costs.h"
#include "engine/nn/parameter_order.h"

namespace dstrain {
namespace {

/// The value of torchvision and timm: branches start at a millionth.
constexpr double kFirstScale = 1e-6;

at::Tensor norm_of_pixels(LayerNorm& norm, const at::Tensor& x_BHWC) {
  const at::Tensor rows = x_BHWC.reshape({-1, x_BHWC.size(3)});
  return norm.forward(rows, std::nullopt).second.view(x_BHWC.sizes());
}

std::int64_t pixels_of(const ImageShape& image) {
  return image.samples * image.height * image.width;
}

}  // namespace

std::vector<Parameter*> PatchConv::parameters() {
  std::vector<Parameter*> list;
  conv_.add_parameters(list);
  norm_.add_parameters(list);
  return matrices_first(std::move(list));
}

Tensors PatchConv::forward(const Tensors& input, const Batch& batch, const BlockContext&) {
  const at::Tensor x = input_of(input, batch);
  if (norm_first_) return {conv_.forward(norm_of_pixels(norm_, x))};
  return {norm_of_pixels(norm_, conv_.forward(x))};
}

BlockCost PatchConv::cost(const BatchShape& shape) const {
  const ImageShape input = input_shape(shape);
  ImageCosts costs(name(), input, shape.compute_bytes);
  if (norm_first_) costs.layer_norm(norm_, pixels_of(input), /*kept=*/true);
  const ImageShape output = costs.conv(conv_, input, /*kept=*/!norm_first_);
  if (!norm_first_) costs.layer_norm(norm_, pixels_of(output), /*kept=*/false);
  return costs.finish(output);
}

FeatureSize PatchConv::output() const {
  const ImageShape output = conv_.output(input_shape({.micro_batch = 1}));
  return {output.height, output.width, output.channels};
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

Tensors ConvNextBlock::forward(const Tensors& input, const Batch& batch,
                               const BlockContext& context) {
  const Call call = Call::of(batch, context);
  const at::Tensor x = input_of(input, batch);
  const at::Tensor h = norm_of_pixels(layers_.norm, layers_.depthwise.forward(x));
  const at::Tensor branch = layers_.mlp.forward(h.view({-1, h.size(3)}), call).view(x.sizes());
  ops::DropMask drop;
  if (layers_.drop_path > 0 && call.trains() && call.dropout_seed.defined()) {
    drop = {.share = layers_.drop_path,
            .seed = call.dropout_seed,
            .place = stable_hash(name() + ".drop_path")};
  }
  return {ops::layer_scale(branch, scale_, drop, x)};
}

BlockCost ConvNextBlock::cost(const BatchShape& shape) const {
  const ImageShape image = input_shape(shape);
  ImageCosts costs(name(), image, shape.compute_bytes);
  costs.conv(layers_.depthwise, image, /*kept=*/true);
  costs.layer_norm(layers_.norm, pixels_of(image), /*kept=*/false);
  costs.scaled_mlp(layers_.mlp, scale_, image);
  return costs.finish(image);
}

}  // namespace dstrain
