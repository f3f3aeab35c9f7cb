#include "engine/models/resnet/resnet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "engine/models/image/config.h"
#include "engine/models/image/head.h"
#include "engine/models/image/initial.h"
#include "engine/models/image/stage.h"
#include "engine/models/resnet/residual_block.h"

namespace dstrain {
namespace {

struct ResNetKind {
  std::string_view name;
  std::array<int, 4> blocks;  ///< of each stage
  bool bottleneck = false;    ///< 1x1, 3x3, 1x1 instead of twice 3x3
};
constexpr ResNetKind kKinds[] = {{"resnet18", {2, 2, 2, 2}}, {"resnet50", {3, 4, 6, 3}, true}};
constexpr std::int64_t kWidth = 64;     ///< of the first stage; each further one has twice as many
constexpr std::int64_t kExpansion = 4;  ///< of a bottleneck's output over its 3x3
constexpr std::int64_t kSmallestImage = 2;  ///< the stem's pool has an output

ConvNorm conv_norm(const std::string& conv, const std::string& norm, const ops::ConvShape& shape,
                   const BatchNormOptions& options, ops::ImageActivation activation) {
  return {Conv(conv, shape, he_normal(shape)), BatchNorm(norm, shape.out, options, activation)};
}

ops::ConvShape square(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return {.in = in,
          .out = out,
          .kernel = kernel,
          .stride = stride,
          .before = kernel / 2,
          .after = kernel / 2};
}

std::unique_ptr<ResidualBlock> make_block(const std::string& name, const FeatureSize& input,
                                          std::int64_t width, std::int64_t stride, bool bottleneck,
                                          const BatchNormOptions& options, FeatureSize& output) {
  using enum ops::ImageActivation;
  const std::int64_t in = input.channels, out = bottleneck ? kExpansion * width : width;
  std::vector<ops::ConvShape> shapes = {square(in, width, 3, stride), square(width, out, 3, 1)};
  if (bottleneck)
    shapes = {square(in, width, 1, 1), square(width, width, 3, stride), square(width, out, 1, 1)};
  std::vector<ConvNorm> branch;
  for (const ops::ConvShape& shape : shapes) {
    const std::size_t number = branch.size() + 1;
    branch.push_back(conv_norm(fmt::format("{}.conv{}", name, number),
                               fmt::format("{}.bn{}", name, number), shape, options, relu));
  }
  std::optional<ConvNorm> shortcut;
  if (stride != 1 || in != out)
    shortcut = conv_norm(name + ".downsample.0", name + ".downsample.1", square(in, out, 1, stride),
                         options, none);
  const ops::ConvShape strided = square(in, out, 3, stride);
  output = {strided.output_side(input.height), strided.output_side(input.width), out};
  return std::make_unique<ResidualBlock>(name, input, std::move(branch), std::move(shortcut));
}

}  // namespace

Model resnet_model(const ModelConfig& recipe, const ModelFamily& family,
                   const ModelInputs& inputs) {
  const ImageModelConfig config =
      image_model_config(recipe, family, inputs, {.smallest_image = kSmallestImage});
  const ResNetKind& kind = *std::ranges::find(kKinds, config.published->name, &ResNetKind::name);
  Blocks blocks;
  const ops::ConvShape stem_shape = square(config.channels, kWidth, 7, 2);
  std::vector<ConvStage::Layer> stem_layers;
  stem_layers.push_back({Conv("conv1", stem_shape, he_normal(stem_shape)),
                         BatchNorm("bn1", kWidth, config.norm, ops::ImageActivation::relu)});
  auto stem =
      std::make_unique<ConvStage>("conv1", config.image(), /*stem=*/true, std::move(stem_layers),
                                  ops::PoolShape{.kernel = 3, .stride = 2, .padding = 1});
  FeatureSize size = stem->output();
  blocks.push_back(std::move(stem));
  for (std::size_t stage = 0; stage < kind.blocks.size(); ++stage) {
    for (int i = 0; i < kind.blocks[stage]; ++i) {
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      FeatureSize output;
      blocks.push_back(make_block(fmt::format("layer{}.{}", stage + 1, i), size, kWidth << stage,
                                  stride, kind.bottleneck, config.norm, output));
      size = output;
    }
  }
  blocks.push_back(std::make_unique<ImageHead>(
      "fc", size,
      HeadLayers{.dropout = config.dropout,
                 .classifier = torch_linear("fc", size.channels, config.classes)}));
  return image_model(config, inputs, std::move(blocks));
}

}  // namespace dstrain
