#include "engine/models/mobilenet/mobilenet_v3.h"

#include <fmt/format.h>

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

/// A line of the tables.
struct V3Block {
  std::int64_t kernel, hidden, channels;
  bool excites, hard_swish;  ///< else ReLU
  std::int64_t stride;
};
constexpr V3Block kLarge[] = {
    {3, 16, 16, false, false, 1}, {3, 64, 24, false, false, 2}, {3, 72, 24, false, false, 1},
    {5, 72, 40, true, false, 2},  {5, 120, 40, true, false, 1}, {5, 120, 40, true, false, 1},
    {3, 240, 80, false, true, 2}, {3, 200, 80, false, true, 1}, {3, 184, 80, false, true, 1},
    {3, 184, 80, false, true, 1}, {3, 480, 112, true, true, 1}, {3, 672, 112, true, true, 1},
    {5, 672, 160, true, true, 2}, {5, 960, 160, true, true, 1}, {5, 960, 160, true, true, 1}};
constexpr V3Block kSmall[] = {
    {3, 16, 16, true, false, 2}, {3, 72, 24, false, false, 2}, {3, 88, 24, false, false, 1},
    {5, 96, 40, true, true, 2},  {5, 240, 40, true, true, 1},  {5, 240, 40, true, true, 1},
    {5, 120, 48, true, true, 1}, {5, 144, 48, true, true, 1},  {5, 288, 96, true, true, 2},
    {5, 576, 96, true, true, 1}, {5, 576, 96, true, true, 1}};

struct V3Kind {
  std::span<const V3Block> blocks;
  std::int64_t hidden;          ///< of the classifier
  std::span<const int> stages;  ///< blocks of each, as timm numbers them
};
constexpr int kLargeStages[] = {1, 2, 3, 4, 2, 3}, kSmallStages[] = {1, 2, 3, 2, 3};
constexpr V3Kind kLargeKind = {kLarge, 1280, kLargeStages},
                 kSmallKind = {kSmall, 1024, kSmallStages};
constexpr std::int64_t kV3Stem = 16;
constexpr std::int64_t kLastOverBlock = 6;  ///< channels of the last convolution
constexpr std::int64_t kHiddenOverSqueeze = 4;
constexpr double kV3Dropout = 0.2;
constexpr std::string_view kTimm = "timm-";

MobileBlock block_of(const V3Block& row) {
  MobileBlock block = {
      .hidden = row.hidden,
      .channels = row.channels,
      .kernel = row.kernel,
      .stride = row.stride,
      .activation = row.hard_swish ? ops::ImageActivation::hardswish : ops::ImageActivation::relu};
  if (row.excites)
    block.excite = {.squeezed = multiple_of_8(static_cast<double>(row.hidden) / kHiddenOverSqueeze),
                    .activation = ops::ImageActivation::relu,
                    .gate = ops::Gate::hard_sigmoid};
  return block;
}

FileTensor timm_tensor_of(const FileTensor& tensor, const V3Kind& kind) {
  const std::size_t last = kind.blocks.size() + 1;
  const std::pair<std::string, std::string> outside[] = {
      {"features.0.0.", "conv_stem."},
      {"features.0.1.", "bn1."},
      {fmt::format("features.{}.0.", last), fmt::format("blocks.{}.0.conv.", kind.stages.size())},
      {fmt::format("features.{}.1.", last), fmt::format("blocks.{}.0.bn1.", kind.stages.size())},
      {"classifier.0.", "conv_head."},
      {"classifier.3.", "classifier."}};
  for (const auto& [ours, theirs] : outside) {
    if (!tensor.name.starts_with(ours)) continue;
    FileTensor renamed = {theirs + tensor.name.substr(ours.size()), tensor.shape};
    if (theirs == "conv_head." && tensor.shape.size() == 2)
      renamed.shape.insert(renamed.shape.end(), {1, 1});
    return renamed;
  }
  std::size_t b = 0;
  std::int64_t in = kV3Stem;
  for (std::size_t stage = 0; stage < kind.stages.size(); ++stage) {
    for (int i = 0; i < kind.stages[stage]; ++i, ++b) {
      const V3Block& block = kind.blocks[b];
      const std::string prefix = fmt::format("features.{}.", b + 1);
      if (tensor.name.starts_with(prefix))
        return {fmt::format("blocks.{}.{}.{}", stage, i,
                            timm_mobile_layer(tensor.name.substr(prefix.size()), block.hidden != in,
                                              block.excites)),
                tensor.shape};
      in = block.channels;
    }
  }
  return tensor;
}

}  // namespace

Model mobilenet_v3_model(const ModelConfig& recipe, const ModelFamily& family,
                         const ModelInputs& inputs) {
  using enum ops::ImageActivation;
  const std::string_view name = published_image_model(recipe).name;
  const bool timms = name.starts_with(kTimm);
  const V3Kind& kind = name.ends_with("large") ? kLargeKind : kSmallKind;
  const ImageModelConfig config =
      image_model_config(recipe, family, inputs, {.dropout = kV3Dropout});
  const MobileRules rules = {.norm = config.norm, .fan_of_group = timms};
  Blocks blocks;
  const ops::ConvShape stem_shape =
      mobile_conv(config.channels, kV3Stem, 3, 2, config.image_size, rules.padding);
  std::vector<ConvStage::Layer> stem_layers;
  stem_layers.push_back({Conv("features.0.0", stem_shape, he_normal(stem_shape)),
                         BatchNorm("features.0.1", kV3Stem, config.norm, hardswish)});
  auto stem = std::make_unique<ConvStage>("features.0", config.image(), /*stem=*/true,
                                          std::move(stem_layers), std::nullopt);
  FeatureSize size = stem->output();
  blocks.push_back(std::move(stem));
  for (const V3Block& row : kind.blocks)
    blocks.push_back(
        mobile_block(fmt::format("features.{}", blocks.size()), block_of(row), rules, size));
  const std::int64_t features = kLastOverBlock * size.channels;
  // The first map of timm's model is a convolution.
  const InitialWeights normal = {.kind = Init::normal, .std = 0.01};
  std::vector<Linear> hidden;
  hidden.push_back(Linear({{"classifier.0", kind.hidden}}, {features},
                          timms ? he_normal({.out = kind.hidden}) : normal));
  const std::string last = fmt::format("features.{}", blocks.size());
  blocks.push_back(std::make_unique<ImageHead>(
      last, size,
      HeadLayers{
          .conv = mobile_conv_norm(last, {.in = size.channels, .out = features}, rules, hardswish),
          .hidden = std::move(hidden),
          .activation = hardswish,
          .dropout = config.dropout,
          .classifier = Linear({{"classifier.3", config.classes}}, {kind.hidden},
                               timms ? torch_uniform(config.classes) : normal)}));
  return image_model(config, inputs, std::move(blocks));
}

FileTensor mobilenet_v3_large_timm_tensor(const FileTensor& tensor) {
  return timm_tensor_of(tensor, kLargeKind);
}

FileTensor mobilenet_v3_small_timm_tensor(const FileTensor& tensor) {
  return timm_tensor_of(tensor, kSmallKind);
}

}  // namespace dstrain
