#include "engine/models/efficientnet/efficientnet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/models/image/config.h"
#include "engine/models/image/head.h"
#include "engine/models/image/initial.h"
#include "engine/models/image/mobile_block.h"
#include "engine/models/image/stage.h"

namespace dstrain {
namespace {

/// Blocks of equal width; the first of them has the stride. B0 has these, the others wider and
/// deeper ones.
struct EfficientStage {
  std::int64_t expansion, kernel, stride, channels;
  double blocks;
};
constexpr EfficientStage kEfficientStages[] = {
    {1, 3, 1, 16, 1},  {6, 3, 2, 24, 2},  {6, 5, 2, 40, 2}, {6, 3, 2, 80, 3},
    {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4}, {6, 3, 1, 320, 1}};
constexpr double kEfficientStem = 32;
constexpr std::int64_t kEfficientFeatures =
    4;                                         ///< of the head, over the channels of the last block
constexpr std::int64_t kInputOverSqueeze = 4;  ///< of a block's input over what its gate is made of

struct EfficientNetKind {
  std::string_view name;  ///< without "tf-"
  double width, depth;    ///< over those of B0
  double dropout;
};
constexpr EfficientNetKind kEfficientKinds[] = {{"efficientnet-b0", 1.0, 1.0, 0.2},
                                                {"efficientnet-b1", 1.0, 1.1, 0.2},
                                                {"efficientnet-b2", 1.1, 1.2, 0.3},
                                                {"efficientnet-b3", 1.2, 1.4, 0.3},
                                                {"efficientnet-b4", 1.4, 1.8, 0.4}};
constexpr std::string_view kTensorFlow = "tf-";
constexpr double kDropPath = 0.2;

struct PlacedBlock {
  std::string name;
  MobileBlock block;
};

/// All blocks, without the channels between their convolutions, which follow from their input's.
std::vector<PlacedBlock> blocks_of(const EfficientNetKind& kind, double drop_path) {
  std::vector<PlacedBlock> list;
  std::int64_t in = multiple_of_8(kEfficientStem * kind.width);
  for (std::size_t s = 0; s < std::size(kEfficientStages); ++s) {
    const EfficientStage& stage = kEfficientStages[s];
    const auto blocks = static_cast<int>(std::ceil(stage.blocks * kind.depth));
    const std::int64_t channels = multiple_of_8(static_cast<double>(stage.channels) * kind.width);
    for (int i = 0; i < blocks; ++i) {
      const SqueezeExciteOptions excite = {
          .squeezed = std::max<std::int64_t>(1, in / kInputOverSqueeze),
          .activation = ops::ImageActivation::silu,
          .gate = ops::Gate::sigmoid};
      list.push_back({fmt::format("features.{}.{}", s + 1, i),
                      {.hidden = in * stage.expansion,
                       .channels = channels,
                       .kernel = stage.kernel,
                       .stride = i == 0 ? stage.stride : 1,
                       .activation = ops::ImageActivation::silu,
                       .excite = excite}});
      in = channels;
    }
  }
  for (std::size_t i = 0; i < list.size(); ++i)
    list[i].block.drop_path = drop_path * static_cast<double>(i) / static_cast<double>(list.size());
  return list;
}

}  // namespace

Model efficientnet_model(const ModelConfig& recipe, const ModelFamily& family,
                         const ModelInputs& inputs) {
  using enum ops::ImageActivation;
  std::string_view name = published_image_model(recipe).name;
  const bool tensorflow = name.starts_with(kTensorFlow);
  if (tensorflow) name.remove_prefix(kTensorFlow.size());
  const EfficientNetKind& kind = *std::ranges::find(kEfficientKinds, name, &EfficientNetKind::name);
  const ImageModelConfig config =
      image_model_config(recipe, family, inputs, {.dropout = kind.dropout, .drop_path = kDropPath});
  const MobileRules rules = {.norm = config.norm,
                             .padding = tensorflow ? ImagePadding::same : ImagePadding::symmetric,
                             .fan_of_group = tensorflow};
  Blocks blocks;
  const std::int64_t stem_channels = multiple_of_8(kEfficientStem * kind.width);
  const ops::ConvShape stem_shape =
      mobile_conv(config.channels, stem_channels, 3, 2, config.image_size, rules.padding);
  std::vector<ConvStage::Layer> stem_layers;
  stem_layers.push_back({Conv("features.0.0", stem_shape, he_normal(stem_shape)),
                         BatchNorm("features.0.1", stem_channels, config.norm, silu)});
  auto stem = std::make_unique<ConvStage>("features.0", config.image(), /*stem=*/true,
                                          std::move(stem_layers), std::nullopt);
  FeatureSize size = stem->output();
  blocks.push_back(std::move(stem));
  for (const PlacedBlock& placed : blocks_of(kind, config.drop_path))
    blocks.push_back(mobile_block(placed.name, placed.block, rules, size));
  const std::int64_t features = kEfficientFeatures * size.channels;
  const std::string last = fmt::format("features.{}", std::size(kEfficientStages) + 1);
  blocks.push_back(std::make_unique<ImageHead>(
      last, size,
      HeadLayers{
          .conv = mobile_conv_norm(last, {.in = size.channels, .out = features}, rules, silu),
          .dropout = config.dropout,
          .classifier = Linear({{"classifier.1", config.classes}}, {features},
                               torch_uniform(config.classes))}));
  return image_model(config, inputs, std::move(blocks));
}

FileTensor efficientnet_timm_tensor(const FileTensor& tensor) {
  constexpr std::pair<std::string_view, std::string_view> kOutside[] = {
      {"features.0.0.", "conv_stem."},
      {"features.0.1.", "bn1."},
      {"features.8.0.", "conv_head."},
      {"features.8.1.", "bn2."},
      {"classifier.1.", "classifier."}};
  for (const auto& [ours, theirs] : kOutside) {
    if (tensor.name.starts_with(ours))
      return {std::string(theirs) + tensor.name.substr(ours.size()), tensor.shape};
  }
  for (std::size_t stage = 0; stage < std::size(kEfficientStages); ++stage) {
    const std::string prefix = fmt::format("features.{}.", stage + 1);
    if (!tensor.name.starts_with(prefix)) continue;
    const std::size_t dot = tensor.name.find('.', prefix.size());
    return {fmt::format(
                "blocks.{}.{}.{}", stage, tensor.name.substr(prefix.size(), dot - prefix.size()),
                timm_mobile_layer(tensor.name.substr(dot + 1),
                                  kEfficientStages[stage].expansion != 1, /*excites=*/true)),
            tensor.shape};
  }
  return tensor;
}

}  // namespace dstrain
