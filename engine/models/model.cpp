#include "engine/models/model.h"

#include <fmt/format.h>

#include <set>

#include "engine/base/error.h"
#include "engine/models/bloom.h"
#include "engine/models/groups.h"
#include "engine/models/qwen2.h"
#include "engine/models/vit.h"
#include "recipes/schema/config_file.h"

namespace dstrain {
namespace {

/// By the recipe's name, else by the model_type of its weights.
std::string family_of(const ModelConfig& config) {
  const std::string& name = config.name;
  if (name == "vit" || vit_named(name)) return "vit";
  if (name == "bloom" || bloom_named(name)) return "bloom";
  if (name == "qwen2" || qwen2_named(name)) return "qwen2";
  if (!name.empty() || config.weights.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("model.name: '{}' is no model that dstrain knows", name),
                "known: vit-tiny, vit-base, vit-large, vit-huge, google/vit-base-patch16-224, "
                "google/vit-large-patch16-224, google/vit-huge-patch14-224-in21k; bloom-560m, "
                "bloom-1b1, bloom-1b7, bloom-3b, bloom-7b1; qwen2.5-0.5b, qwen2.5-1.5b, "
                "qwen2.5-3b, qwen2.5-7b; the latter also after bigscience/ and Qwen/");
  }
  const std::string type = model_type_of(config.weights);
  if (type == "vit" || type == "bloom" || type == "qwen2") return type;
  throw Error(ErrorKind::data,
              fmt::format("{}/config.json: model_type is '{}'", config.weights, type),
              "dstrain trains vit, bloom and qwen2");
}

Model vit_model(const ModelConfig& recipe, const ModelInputs& inputs) {
  const VitConfig config = vit_config(recipe, inputs.classes);
  return {.family = "vit",
          .blocks = make_vit(config),
          .config_json = vit_config_json(config),
          .image_size = static_cast<int>(config.image_size),
          .channels = static_cast<int>(config.channels),
          .classes = static_cast<int>(config.classes)};
}

/// A language model of any family.
template <class Config>
Model language_model(const char* family, Config config, const ModelInputs& inputs,
                     Blocks (*make)(const Config&), std::string (*json)(const Config&)) {
  config.sequence = inputs.sequence;
  return {.family = family,
          .blocks = make(config),
          .config_json = json(config),
          .vocab_size = static_cast<int>(config.vocab_size),
          .sequence = inputs.sequence,
          .notes = config.notes};
}

}  // namespace

Model make_model(const ModelConfig& config, const ModelInputs& inputs) {
  const std::string family = family_of(config);
  if (family == "bloom")
    return language_model("bloom", bloom_config(config), inputs, make_bloom, bloom_config_json);
  if (family == "qwen2")
    return language_model("qwen2", qwen2_config(config), inputs, make_qwen2, qwen2_config_json);
  return vit_model(config, inputs);
}

bool is_language_model(const ModelConfig& config) { return family_of(config) != "vit"; }

std::vector<Parameter*> all_parameters(const Model& model) {
  std::vector<Parameter*> list;
  std::set<const Parameter*> seen;
  for (const auto& block : model.blocks) {
    for (Parameter* parameter : block->parameters()) {
      if (seen.insert(parameter).second) list.push_back(parameter);
    }
  }
  return list;
}

ModelCost model_cost(Model& model, const BatchShape& shape) {
  ModelCost cost;
  const GroupedParameters grouped = group_parameters(model);
  for (std::size_t g = 0; g < grouped.groups.size(); ++g) {
    GroupCost group;
    group.name = grouped.names[g];
    group.trainable = grouped.groups[g].front()->trainable;
    for (const Parameter* parameter : grouped.groups[g])
      group.tensor_sizes.push_back(parameter->numel());
    cost.groups.push_back(std::move(group));
  }
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    cost.blocks.push_back(model.blocks[b]->cost(shape));
    cost.blocks.back().groups = grouped.of_block[b];
  }
  if (model.is_language()) {
    // Each token: itself, its label and the label's weight.
    cost.batch_bytes = shape.micro_batch * model.sequence * (8 + 8 + 4);
    return cost;
  }
  // Each sample: stored pixels, images in compute dtype, label, weight and sample number.
  const std::int64_t pixels = std::int64_t{model.channels} * model.image_size * model.image_size;
  cost.batch_bytes = shape.micro_batch * (pixels * (1 + shape.compute_bytes) + 8 + 4 + 8);
  return cost;
}

}  // namespace dstrain
