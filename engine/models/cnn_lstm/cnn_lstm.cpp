#include "engine/models/cnn_lstm/cnn_lstm.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/models/cnn_lstm/blocks.h"
#include "engine/models/config_sizes.h"
#include "engine/models/image/as_block.h"
#include "engine/models/image/config.h"
#include "engine/models/image/initial.h"

namespace dstrain {
namespace {

Model trunk_model(const ModelConfig& recipe, const ModelInputs& inputs) {
  const ModelFamily* trunk = family_of(recipe.trunk);
  if (trunk == nullptr || !trunk->by_name || trunk->joins)
    throw Error(
        ErrorKind::usage,
        fmt::format("model.trunk: '{}' is no convolutional model that dstrain knows", recipe.trunk),
        "use a name such as mobilenet-v2 or resnet18");
  ModelConfig config = recipe;
  config.name = recipe.trunk;
  config.weights.clear();
  config.width = 0;
  config.layers = 0;
  config.dropout = 0;  // its classifier is left out
  return make_model(config, inputs);
}

}  // namespace

Model cnn_lstm_model(const ModelConfig& recipe, const ModelFamily& family,
                     const ModelInputs& inputs) {
  constexpr std::string_view kName = "cnn-lstm";
  Model trunk = trunk_model(recipe, inputs);
  const ModelSizes& published = published_model(kName)->sizes;
  const std::int64_t width = recipe.width != 0 ? recipe.width : published.width,
                     layers = recipe.layers != 0 ? recipe.layers : published.layers;
  const double dropout = std::max(recipe.dropout, 0.0);
  Problems problems = foreign_key_problems(recipe, family);
  check_limits(family,
               {.image_size = trunk.image_size,
                .channels = trunk.channels,
                .width = width,
                .layers = layers},
               problems);
  raise_problems(ErrorKind::usage, problems, "change the sizes under model");
  constexpr const char* kPrefix = "trunk.";
  Model model;
  for (std::size_t b = 0; b + 1 < trunk.blocks.size(); ++b) {
    auto block = as_block<ImageBlock>(std::move(trunk.blocks[b]));
    block->put_under(kPrefix);
    model.blocks.push_back(std::make_unique<TrunkBlock>(std::move(block), inputs.frames));
  }
  auto head = as_block<ImageHead>(std::move(trunk.blocks.back()));
  head->put_under(kPrefix);
  const std::int64_t features = head->pooled_channels();
  model.blocks.push_back(std::make_unique<LstmHead>(
      std::move(head), inputs.frames, Lstm("lstm", features, width, layers),
      torch_linear("classifier", width, trunk.classes), dropout));
  model.image_size = trunk.image_size;
  model.channels = trunk.channels;
  model.frames = inputs.frames;
  model.classes = trunk.classes;
  model.class_names = trunk.class_names;
  model.bucket = trunk.bucket;
  model.drops = trunk.drops || dropout > 0;
  model.tokens = trunk.tokens;
  nlohmann::json json = {
      {"architecture", kName}, {"trunk", recipe.trunk},        {"width", width},
      {"layers", layers},      {"num_classes", model.classes}, {"image_size", model.image_size}};
  if (!model.class_names.empty()) json["label_names"] = model.class_names;
  model.config_json = json_text(json, 2) + "\n";
  return model;
}

}  // namespace dstrain
