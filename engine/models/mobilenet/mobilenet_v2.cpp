#include "engine/models/mobilenet/mobilenet_v2.h"

#include <fmt/format.h>

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "engine/models/image/config.h"
#include "engine/models/image/head.h"
#include "engine/models/image/initial.h"
#include "engine/models/image/inverted_residual.h"
#include "engine/models/image/stage.h"

namespace dstrain {
namespace {

/// Blocks of equal width; the first of them has the stride.
struct MobileStage {
  std::int64_t expansion, channels;
  int blocks;
  std::int64_t stride;
};
constexpr MobileStage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                   {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
constexpr std::int64_t kStem = 32, kFeatures = 1280;
constexpr double kDropout = 0.2;

ConvNorm conv_norm_named(const std::string& conv, const std::string& norm,
                         const ops::ConvShape& shape, const BatchNormOptions& options,
                         ops::ImageActivation activation) {
  return {Conv(conv, shape, he_normal(shape)), BatchNorm(norm, shape.out, options, activation)};
}

std::unique_ptr<InvertedResidual> make_block(const std::string& name, const FeatureSize& input,
                                             const MobileStage& stage, std::int64_t stride,
                                             const BatchNormOptions& options, FeatureSize& output) {
  using enum ops::ImageActivation;
  const std::int64_t hidden = stage.expansion * input.channels;
  const std::string conv = name + ".conv";
  int layer = 0;
  std::optional<ConvNorm> expand;
  const auto next_pair = [&](const ops::ConvShape& shape) {
    const std::string pair = fmt::format("{}.{}", conv, layer++);
    return conv_norm_named(pair + ".0", pair + ".1", shape, options, relu6);
  };
  if (stage.expansion != 1) expand = next_pair({.in = input.channels, .out = hidden});
  const ops::ConvShape spread = {.in = hidden,
                                 .out = hidden,
                                 .kernel = 3,
                                 .stride = stride,
                                 .before = 1,
                                 .after = 1,
                                 .groups = hidden};
  ConvNorm depthwise = next_pair(spread);
  ConvNorm project =
      conv_norm_named(fmt::format("{}.{}", conv, layer), fmt::format("{}.{}", conv, layer + 1),
                      {.in = hidden, .out = stage.channels}, options, none);
  output = {spread.output_side(input.height), spread.output_side(input.width), stage.channels};
  return std::make_unique<InvertedResidual>(
      name, input,
      InvertedLayers{.expand = std::move(expand),
                     .depthwise = std::move(depthwise),
                     .project = std::move(project),
                     .residual = stride == 1 && input.channels == stage.channels});
}

}  // namespace

Model mobilenet_v2_model(const ModelConfig& recipe, const ModelFamily& family,
                         const ModelInputs& inputs) {
  using enum ops::ImageActivation;
  const ImageModelConfig config = image_model_config(recipe, family, inputs, {.dropout = kDropout});
  Blocks blocks;
  const ops::ConvShape stem_shape = {
      .in = config.channels, .out = kStem, .kernel = 3, .stride = 2, .before = 1, .after = 1};
  std::vector<ConvStage::Layer> stem_layers;
  stem_layers.push_back({Conv("features.0.0", stem_shape, he_normal(stem_shape)),
                         BatchNorm("features.0.1", kStem, config.norm, relu6)});
  auto stem = std::make_unique<ConvStage>("features.0", config.image(), /*stem=*/true,
                                          std::move(stem_layers), std::nullopt);
  FeatureSize size = stem->output();
  blocks.push_back(std::move(stem));
  for (const MobileStage& stage : kStages) {
    for (int i = 0; i < stage.blocks; ++i) {
      FeatureSize output;
      blocks.push_back(make_block(fmt::format("features.{}", blocks.size()), size, stage,
                                  i == 0 ? stage.stride : 1, config.norm, output));
      size = output;
    }
  }
  const std::string last = fmt::format("features.{}", blocks.size());
  blocks.push_back(std::make_unique<ImageHead>(
      last, size,
      HeadLayers{
          .conv = conv_norm_named(last + ".0", last + ".1", {.in = size.channels, .out = kFeatures},
                                  config.norm, relu6),
          .dropout = config.dropout,
          .classifier = Linear({{"classifier.1", config.classes}}, {kFeatures},
                               {.kind = Init::normal, .std = 0.01})}));
  return image_model(config, inputs, std::move(blocks));
}

FileTensor mobilenet_v2_timm_tensor(const FileTensor& tensor) {
  struct Renamed {
    std::string_view ours, theirs;
  };
  constexpr Renamed kOutside[] = {{"features.0.0.", "conv_stem."},
                                  {"features.0.1.", "bn1."},
                                  {"features.18.0.", "conv_head."},
                                  {"features.18.1.", "bn2."},
                                  {"classifier.1.", "classifier."}};
  // The first list is for a block without a first 1x1 convolution, the second for the others.
  constexpr Renamed kNarrow[] = {{"conv.0.0.", "conv_dw."},
                                 {"conv.0.1.", "bn1."},
                                 {"conv.1.", "conv_pw."},
                                 {"conv.2.", "bn2."}};
  constexpr Renamed kWide[] = {{"conv.0.0.", "conv_pw."}, {"conv.0.1.", "bn1."},
                               {"conv.1.0.", "conv_dw."}, {"conv.1.1.", "bn2."},
                               {"conv.2.", "conv_pwl."},  {"conv.3.", "bn3."}};
  const auto renamed = [&](std::span<const Renamed> list, const std::string& name) {
    for (const auto& [ours, theirs] : list) {
      if (name.starts_with(ours)) return std::string(theirs) + name.substr(ours.size());
    }
    return name;
  };
  if (const std::string name = renamed(kOutside, tensor.name); name != tensor.name)
    return {name, tensor.shape};
  int block = 1;
  for (std::size_t stage = 0; stage < std::size(kStages); ++stage) {
    for (int i = 0; i < kStages[stage].blocks; ++i, ++block) {
      const std::string prefix = fmt::format("features.{}.", block);
      if (!tensor.name.starts_with(prefix)) continue;
      const std::string layer = tensor.name.substr(prefix.size());
      const auto inside =
          kStages[stage].expansion == 1 ? renamed(kNarrow, layer) : renamed(kWide, layer);
      return {fmt::format("blocks.{}.{}.{}", stage, i, inside), tensor.shape};
    }
  }
  return tensor;
}

}  // namespace dstrain
