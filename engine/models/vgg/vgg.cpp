#include "engine/models/vgg/vgg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/models/image/config.h"
#include "engine/models/image/head.h"
#include "engine/models/image/initial.h"
#include "engine/models/image/stage.h"

namespace dstrain {
namespace {

constexpr std::size_t kStages = 5;  ///< each ends in a pool
struct VggKind {
  std::string_view name;  ///< without "-bn"
  std::array<int, kStages> convolutions;
};
constexpr VggKind kKinds[] = {{"vgg11", {1, 1, 2, 2, 2}},
                              {"vgg13", {2, 2, 2, 2, 2}},
                              {"vgg16", {2, 2, 3, 3, 3}},
                              {"vgg19", {2, 2, 4, 4, 4}}};
constexpr std::array<std::int64_t, kStages> kChannels = {64, 128, 256, 512, 512};
constexpr std::int64_t kGrid = 7;  ///< of the features that the linear maps read
constexpr std::int64_t kHidden = 4096;
constexpr double kDropout = 0.5;
constexpr std::int64_t kSmallestImage = 1 << kStages;
constexpr std::string_view kWithNorm = "-bn";

Linear normal_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
  return {{{name, outputs}}, {inputs}, {.kind = Init::normal, .std = 0.01}};
}

}  // namespace

Model vgg_model(const ModelConfig& recipe, const ModelFamily& family, const ModelInputs& inputs) {
  const ImageModelConfig config = image_model_config(
      recipe, family, inputs, {.dropout = kDropout, .smallest_image = kSmallestImage});
  std::string_view name = config.published->name;
  const bool norms = name.ends_with(kWithNorm);
  if (norms) name.remove_suffix(kWithNorm.size());
  const VggKind& kind = *std::ranges::find(kKinds, name, &VggKind::name);
  Blocks blocks;
  FeatureSize size = config.image();
  int layer = 0;  // in torchvision's `features`
  for (std::size_t stage = 0; stage < kStages; ++stage) {
    std::vector<ConvStage::Layer> layers;
    const int first = layer;
    std::int64_t in = size.channels;
    for (int i = 0; i < kind.convolutions[stage]; ++i) {
      const ops::ConvShape shape = {
          .in = in, .out = kChannels[stage], .kernel = 3, .before = 1, .after = 1};
      Conv conv(fmt::format("features.{}", layer++), shape, he_normal(shape), /*has_bias=*/true);
      std::optional<BatchNorm> norm;
      if (norms)
        norm.emplace(fmt::format("features.{}", layer++), shape.out, config.norm,
                     ops::ImageActivation::relu);
      ++layer;  // ReLU
      layers.push_back({std::move(conv), std::move(norm)});
      in = shape.out;
    }
    ++layer;  // pool
    auto block = std::make_unique<ConvStage>(fmt::format("features.{}", first), size, stage == 0,
                                             std::move(layers), ops::PoolShape{});
    size = block->output();
    blocks.push_back(std::move(block));
  }
  std::vector<Linear> hidden;
  hidden.push_back(normal_linear("classifier.0", kGrid * kGrid * size.channels, kHidden));
  hidden.push_back(normal_linear("classifier.3", kHidden, kHidden));
  blocks.push_back(std::make_unique<ImageHead>(
      "classifier", size,
      HeadLayers{.grid = kGrid,
                 .hidden = std::move(hidden),
                 .dropout = config.dropout,
                 .classifier = normal_linear("classifier.6", kHidden, config.classes)}));
  return image_model(config, inputs, std::move(blocks));
}

FileTensor vgg_timm_tensor(const FileTensor& tensor) {
  struct Renamed {
    std::string_view ours, theirs;
    std::int64_t kernel;  ///< of the convolution; 0: a linear map
  };
  constexpr Renamed kRenamed[] = {{"classifier.0.", "pre_logits.fc1.", kGrid},
                                  {"classifier.3.", "pre_logits.fc2.", 1},
                                  {"classifier.6.", "head.fc.", 0}};
  for (const auto& [ours, theirs, kernel] : kRenamed) {
    if (!tensor.name.starts_with(ours)) continue;
    FileTensor renamed = {std::string(theirs) + tensor.name.substr(ours.size()), tensor.shape};
    if (kernel > 0 && tensor.shape.size() == 2)
      renamed.shape = {tensor.shape[0], tensor.shape[1] / (kernel * kernel), kernel, kernel};
    return renamed;
  }
  return tensor;
}

}  // namespace dstrain
