#include "engine/models/convnext/convnext.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/models/convnext/blocks.h"
#include "engine/models/image/config.h"
#include "engine/models/image/head.h"

namespace dstrain {
namespace {

struct ConvNextKind {
  std::string_view name;
  std::array<int, 4> blocks;  ///< of each stage
  std::int64_t channels;      ///< of the first stage; each further one has twice as many
  double drop_path;           ///< torchvision's
};
constexpr ConvNextKind kConvNextKinds[] = {{"convnext-tiny", {3, 3, 9, 3}, 96, 0.1},
                                           {"convnext-small", {3, 3, 27, 3}, 96, 0.4},
                                           {"convnext-base", {3, 3, 27, 3}, 128, 0.5},
                                           {"convnext-large", {3, 3, 27, 3}, 192, 0.5}};
constexpr double kNormEps = 1e-6;
constexpr std::int64_t kStemPatch = 4, kStagePatch = 2;
constexpr std::int64_t kDepthwiseKernel = 7, kHiddenOverWidth = 4;
constexpr std::int64_t kConvNextSmallest = 32;  ///< pixels, by the strides

std::unique_ptr<PatchConv> patch_conv(const std::string& name, const FeatureSize& input,
                                      std::int64_t channels, bool stem) {
  const std::int64_t patch = stem ? kStemPatch : kStagePatch;
  return std::make_unique<PatchConv>(
      name, input, stem,
      Conv(name + (stem ? ".0" : ".1"),
           {.in = input.channels, .out = channels, .kernel = patch, .stride = patch}, {},
           /*has_bias=*/true),
      LayerNorm(name + (stem ? ".1" : ".0"), stem ? channels : input.channels, kNormEps));
}

std::unique_ptr<ConvNextBlock> convnext_block(const std::string& name, const FeatureSize& size,
                                              double drop_path) {
  const std::int64_t width = size.channels, around = kDepthwiseKernel / 2;
  return std::make_unique<ConvNextBlock>(
      name, size,
      ConvNextLayers{.depthwise = Conv(name + ".block.0",
                                       {.in = width,
                                        .out = width,
                                        .kernel = kDepthwiseKernel,
                                        .before = around,
                                        .after = around,
                                        .groups = width},
                                       {}, /*has_bias=*/true),
                     .norm = LayerNorm(name + ".block.2", width, kNormEps),
                     .mlp = Mlp({.up = name + ".block.3", .down = name + ".block.5"}, width,
                                kHiddenOverWidth * width, ops::Gelu::erf, {}),
                     .scale = name + ".layer_scale",
                     .drop_path = drop_path});
}

/// The text before the first dot, as a number, and the text behind it.
std::pair<int, std::string_view> numbered(std::string_view text) {
  const std::size_t dot = text.find('.');
  int number = 0;
  std::from_chars(text.data(), text.data() + dot, number);
  return {number, text.substr(dot + 1)};
}

}  // namespace

Model convnext_model(const ModelConfig& recipe, const ModelFamily& family,
                     const ModelInputs& inputs) {
  const ConvNextKind& kind =
      *std::ranges::find(kConvNextKinds, published_image_model(recipe).name, &ConvNextKind::name);
  const ImageModelConfig config = image_model_config(
      recipe, family, inputs, {.drop_path = kind.drop_path, .smallest_image = kConvNextSmallest});
  int all = 0, placed = 0;
  for (const int blocks : kind.blocks) all += blocks;
  Blocks blocks;
  FeatureSize size = config.image();
  for (std::size_t stage = 0; stage < kind.blocks.size(); ++stage) {
    auto down = patch_conv(fmt::format("features.{}", 2 * stage), size, kind.channels << stage,
                           /*stem=*/stage == 0);
    size = down->output();
    blocks.push_back(std::move(down));
    for (int i = 0; i < kind.blocks[stage]; ++i, ++placed) {
      blocks.push_back(convnext_block(fmt::format("features.{}.{}", 2 * stage + 1, i), size,
                                      config.drop_path * placed / (all - 1)));
    }
  }
  blocks.push_back(std::make_unique<ImageHead>(
      "classifier", size,
      HeadLayers{.norm = LayerNorm("classifier.0", size.channels, kNormEps),
                 .dropout = config.dropout,
                 .classifier = Linear({{"classifier.2", config.classes}}, {size.channels}, {})}));
  return image_model(config, inputs, std::move(blocks));
}

FileTensor convnext_timm_tensor(const FileTensor& tensor) {
  constexpr std::pair<std::string_view, std::string_view> kOutside[] = {
      {"features.0.", "stem."}, {"classifier.0.", "head.norm."}, {"classifier.2.", "head.fc."}};
  constexpr std::pair<std::string_view, std::string_view> kInside[] = {{"block.0.", "conv_dw."},
                                                                       {"block.2.", "norm."},
                                                                       {"block.3.", "mlp.fc1."},
                                                                       {"block.5.", "mlp.fc2."}};
  for (const auto& [ours, theirs] : kOutside) {
    if (tensor.name.starts_with(ours))
      return {std::string(theirs) + tensor.name.substr(ours.size()), tensor.shape};
  }
  constexpr std::string_view kFeatures = "features.";
  if (!tensor.name.starts_with(kFeatures)) return tensor;
  const auto [feature, rest] = numbered(std::string_view(tensor.name).substr(kFeatures.size()));
  const std::string stage = fmt::format("stages.{}.", feature / 2);
  if (feature % 2 == 0) return {fmt::format("{}downsample.{}", stage, rest), tensor.shape};
  const auto [block, layer] = numbered(rest);
  const std::string prefix = fmt::format("{}blocks.{}.", stage, block);
  if (layer == "layer_scale")
    return {prefix + "gamma", {tensor.shape.begin(), tensor.shape.begin() + !tensor.shape.empty()}};
  for (const auto& [ours, theirs] : kInside) {
    if (layer.starts_with(ours))
      return {prefix + std::string(theirs) + std::string(layer.substr(ours.size())), tensor.shape};
  }
  return tensor;
}

}  // namespace dstrain
