#include "engine/models/basic_cnn/basic_cnn.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "engine/models/image/config.h"
#include "engine/models/image/head.h"
#include "engine/models/image/initial.h"
#include "engine/models/image/stage.h"

namespace dstrain {
namespace {

constexpr std::int64_t kChannels[] = {32, 64, 128};
constexpr std::int64_t kSmallestImage = 8;  ///< halved by each of the pools

}  // namespace

Model basic_cnn_model(const ModelConfig& recipe, const ModelFamily& family,
                      const ModelInputs& inputs) {
  const ImageModelConfig config =
      image_model_config(recipe, family, inputs, {.smallest_image = kSmallestImage});
  Blocks blocks;
  FeatureSize size = config.image();
  for (const std::int64_t channels : kChannels) {
    const std::string name = fmt::format("stage{}", blocks.size() + 1);
    const ops::ConvShape shape = {
        .in = size.channels, .out = channels, .kernel = 3, .before = 1, .after = 1};
    std::vector<ConvStage::Layer> layers;
    layers.push_back(
        {Conv(name + ".conv", shape, he_normal(shape)),
         BatchNorm(name + ".norm", channels, config.norm, ops::ImageActivation::relu)});
    auto stage = std::make_unique<ConvStage>(name, size, /*stem=*/blocks.empty(), std::move(layers),
                                             ops::PoolShape{});
    size = stage->output();
    blocks.push_back(std::move(stage));
  }
  blocks.push_back(std::make_unique<ImageHead>(
      "classifier", size,
      HeadLayers{.dropout = config.dropout,
                 .classifier = torch_linear("classifier", size.channels, config.classes)}));
  return image_model(config, inputs, std::move(blocks));
}

}  // namespace dstrain
