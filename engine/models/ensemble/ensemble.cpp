#include "engine/models/ensemble/ensemble.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/models/ensemble/member_block.h"
#include "engine/models/family.h"
#include "engine/models/image/as_block.h"

namespace dstrain {
namespace {

void check_members(const ModelConfig& recipe) {
  if (recipe.members.empty())
    throw Error(ErrorKind::usage, "model.members: empty, but model.name is ensemble",
                "list the models, such as [mobilenet-v2, resnet18, vgg11]");
  for (const std::string& name : recipe.members) {
    const ModelFamily* member = family_of(name);
    if (member != nullptr && member->by_name && !member->joins) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("model.members: '{}' is no convolutional model that dstrain knows", name),
        "use names such as mobilenet-v2, resnet18, vgg11");
  }
}

std::vector<double> shares_of(const ModelConfig& recipe) {
  std::vector<double> weights = recipe.member_weights;
  if (weights.empty()) weights.assign(recipe.members.size(), 1);
  if (weights.size() != recipe.members.size())
    throw Error(ErrorKind::usage,
                fmt::format("model.member_weights: {} weights, but model.members has {} models",
                            weights.size(), recipe.members.size()),
                "give one weight for each member, or none");
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!(sum > 0))
    throw Error(ErrorKind::usage, "model.member_weights: all are 0", "give a member some weight");
  for (double& weight : weights) weight /= sum;
  return weights;
}

Model member_model(const ModelConfig& recipe, const std::string& name, const ModelInputs& inputs) {
  ModelConfig config = recipe;
  config.name = name;
  config.weights.clear();
  config.members.clear();
  return make_model(config, inputs);
}

}  // namespace

Model ensemble_model(const ModelConfig& recipe, const ModelFamily&, const ModelInputs& inputs) {
  check_members(recipe);
  const LogitsMean mean = {.weights = shares_of(recipe),
                           .of_probabilities = recipe.average == EnsembleAverage::probabilities};
  Model ensemble;
  for (std::size_t m = 0; m < recipe.members.size(); ++m) {
    Model model = member_model(recipe, recipe.members[m], inputs);
    if (m > 0 && model.image_size != ensemble.image_size) {
      throw Error(
          ErrorKind::usage,
          fmt::format("model.members: {} takes images of {} pixels, {} of {}", recipe.members[0],
                      ensemble.image_size, recipe.members[m], model.image_size),
          "give one size for all as model.image_size");
    }
    const MemberPlace place = {.member = m, .classes = model.classes};
    Blocks blocks = std::move(model.blocks);
    for (std::size_t b = 0; b + 1 < blocks.size(); ++b)
      ensemble.blocks.push_back(std::make_unique<MemberBlock>(
          as_block<ImageBlock>(std::move(blocks[b])), place, /*stem=*/b == 0));
    ensemble.blocks.push_back(
        std::make_unique<MemberHead>(as_block<ImageHead>(std::move(blocks.back())), place, mean));
    ensemble.image_size = model.image_size;
    ensemble.channels = model.channels;
    ensemble.classes = model.classes;
    ensemble.class_names = model.class_names;
    ensemble.bucket = model.bucket;
    ensemble.drops = ensemble.drops || model.drops;
    ensemble.tokens = model.tokens;
  }
  nlohmann::json json = {{"architecture", "ensemble"},      {"members", recipe.members},
                         {"member_weights", mean.weights},  {"average", spelling(recipe.average)},
                         {"num_classes", ensemble.classes}, {"image_size", ensemble.image_size}};
  if (!ensemble.class_names.empty()) json["label_names"] = ensemble.class_names;
  ensemble.config_json = json_text(json, 2) + "\n";
  return ensemble;
}

}  // namespace dstrain
