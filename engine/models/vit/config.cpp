#include "engine/models/vit/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/models/class_names.h"
#include "engine/models/config_sizes.h"
#include "engine/recipe/config_file.h"
#include "engine/recipe/image_processor.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMaxClasses = 1 << 20;

void read_labels(const nlohmann::json& json, VitConfig& config) {
  config.classes = 2;  // what transformers takes when the file says nothing
  if (json.contains("num_labels") && json["num_labels"].is_number_unsigned()) {
    config.classes = static_cast<std::int64_t>(
        std::min<std::uint64_t>(json["num_labels"].get<std::uint64_t>(), kMaxClasses));
  }
  if (!json.contains("id2label") || !json["id2label"].is_object()) return;
  const nlohmann::json& names = json["id2label"];
  config.classes = static_cast<std::int64_t>(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto found = names.find(std::to_string(i));
    if (found == names.end() || !found->is_string()) {
      config.labels.clear();
      return;
    }
    config.labels.push_back(found->get<std::string>());
  }
}

/// Activations as config.json calls them.
constexpr std::array<std::pair<const char*, ops::Gelu>, 3> kActivations = {
    {{"gelu", ops::Gelu::erf},
     {"gelu_pytorch_tanh", ops::Gelu::tanh},
     {"quick_gelu", ops::Gelu::quick}}};

const char* activation_name(ops::Gelu gelu) {
  return std::ranges::find(kActivations, gelu, &std::pair<const char*, ops::Gelu>::second)->first;
}

void read_activation(ConfigFile& file, VitConfig& config) {
  const std::string name = file.text("hidden_act", activation_name(config.gelu));
  for (const auto& [known, gelu] : kActivations) {
    if (name != known) continue;
    config.gelu = gelu;
    return;
  }
  file.refuse("hidden_act", "\"gelu\", \"gelu_pytorch_tanh\" or \"quick_gelu\"");
}

/// Reads the fields of config.json that change the result; the rest (dropout of zero, pooler,
/// names) is left alone.
VitConfig read_vit_config(const std::filesystem::path& weights, const ModelFamily& family,
                          const VitKind& kind) {
  const ConfigFile whole(weights, std::string(family.name));
  ConfigFile file = whole.of_family(family);
  VitConfig config = kind.published;
  static_cast<ModelSizes&>(config) = read_sizes(file, family);
  config.norm_eps = file.number_within("layer_norm_eps", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  read_activation(file, config);
  if (!file.flag("qkv_bias", true)) file.refuse("qkv_bias", "true");
  for (const char* key : kind.dropouts) {
    if (key != nullptr && file.number(key, 0) != 0)
      file.refuse(key, fmt::format("0; dstrain has no dropout for {}", family.title));
  }
  if (kind.read != nullptr) kind.read(file, config);
  read_labels(whole.json(), config);
  file.raise();
  return config;
}

/// Images of another size than that of the positions, as transformers prepares them.
void choose_image_size(const ModelConfig& recipe, VitConfig& config) {
  config.position_size = config.image_size;
  if (recipe.image_size != 0) {
    config.image_size = recipe.image_size;
  } else if (const auto processor = read_image_processor(recipe.weights)) {
    config.image_size = processor->image_size;
  }
}

void choose_classes(const ModelConfig& recipe, int data_classes,
                    const std::vector<std::string>& data_names, VitConfig& config,
                    Problems& problems) {
  const std::int64_t wanted = recipe.classes != 0 ? recipe.classes : data_classes;
  if (wanted != 0 && wanted != config.classes) {
    config.classes = wanted;
    config.labels.clear();
  }
  if (config.classes < 1 || config.classes > kMaxClasses) {
    problems.push_back(fmt::format("model.classes: {} is not a number of classes from 1 to {}",
                                   config.classes, kMaxClasses));
  } else if (config.classes < data_classes) {
    problems.push_back(fmt::format("model.classes: {} are too few for the {} classes of the data",
                                   config.classes, data_classes));
  }
  if (!problems.empty()) return;
  ClassNames chosen = choose_class_names(data_names, std::move(config.labels), config.classes);
  config.labels = std::move(chosen.names);
  if (!chosen.note.empty()) config.notes.push_back(std::move(chosen.note));
}

}  // namespace

VitConfig vit_config(const ModelConfig& recipe, const ModelFamily& family, const VitKind& kind,
                     int data_classes, const std::vector<std::string>& data_names) {
  Problems problems = foreign_key_problems(recipe, family);
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  VitConfig config = kind.published;
  if (recipe.weights.empty()) {
    static_cast<ModelSizes&>(config) = named_sizes(recipe, family);
    const PublishedModel* named = published_model(recipe.name);
    if (named != nullptr && kind.specialize != nullptr) kind.specialize(named->name, config);
    if (named != nullptr && family.resizes_positions && recipe.patch_size == 0)
      config.position_size = named->sizes.image_size;
  } else {
    config = read_vit_config(recipe.weights, family, kind);
    if (family.resizes_positions) choose_image_size(recipe, config);
    compare_sizes(recipe, family, config, problems);
  }
  if (kind.complete != nullptr) kind.complete(config);
  choose_classes(recipe, data_classes, data_names, config, problems);
  config.drop_path = std::max(recipe.drop_path, 0.0);
  check_limits(family, config, problems);
  if (problems.empty()) {
    if (!kind.leaves_rest)
      check_multiple("image_size", config.image_size, "patch_size", config.patch_size, problems);
    if (config.image_size < config.patch_size)
      problems.push_back(fmt::format("model.image_size: {} is less than model.patch_size ({})",
                                     config.image_size, config.patch_size));
    if (config.position_size > 0 && config.position_size % config.patch_size != 0)
      problems.push_back(
          fmt::format("model.weights: positions of {} pixels are no whole number of "
                      "patches of {}",
                      config.position_size, config.patch_size));
    check_multiple("width", config.width, "heads", config.heads, problems);
  }
  raise_size_problems(recipe, problems);
  return config;
}

std::string vit_config_json(const VitConfig& config, const ModelFamily& family,
                            const VitKind& kind) {
  nlohmann::json tower = kind.fields(config);
  tower["hidden_act"] = activation_name(config.gelu);
  tower["layer_norm_eps"] = config.norm_eps;
  for (const char* key : kind.dropouts) {
    if (key != nullptr) tower[key] = 0.0;
  }
  write_sizes(family, config, tower);
  if (config.position_size > 0) tower["image_size"] = config.position_size;
  nlohmann::json json = tower;
  if (family.tower != nullptr) {
    tower["model_type"] = kind.tower_type;
    json = {{family.tower, std::move(tower)}};
  }
  json["architectures"] = {kind.model_class};
  json["model_type"] = family.name;
  nlohmann::json names = nlohmann::json::object();
  nlohmann::json numbers = nlohmann::json::object();
  for (std::int64_t i = 0; i < config.classes; ++i) {
    const std::string name = config.labels.empty() ? fmt::format("LABEL_{}", i)
                                                   : config.labels[static_cast<std::size_t>(i)];
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  json["id2label"] = std::move(names);
  json["label2id"] = std::move(numbers);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain
