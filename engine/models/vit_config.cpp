#include "engine/models/vit_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/models/config_sizes.h"
#include "recipes/schema/config_file.h"

namespace dstrain {
namespace {

constexpr std::array<Size<VitConfig>, 7> kVitFields = {{
    {model_size(ModelFamily::vit, "image_size"), &VitConfig::image_size},
    {model_size(ModelFamily::vit, "patch_size"), &VitConfig::patch_size},
    {model_size(ModelFamily::vit, "channels"), &VitConfig::channels},
    {model_size(ModelFamily::vit, "width"), &VitConfig::width},
    {model_size(ModelFamily::vit, "layers"), &VitConfig::layers},
    {model_size(ModelFamily::vit, "heads"), &VitConfig::heads},
    {model_size(ModelFamily::vit, "mlp_width"), &VitConfig::mlp_width},
}};
constexpr std::span<const Size<VitConfig>> kAllVitFields = kVitFields;
constexpr std::int64_t kMostClasses = 1 << 20;

void read_labels(const nlohmann::json& json, VitConfig& config) {
  config.classes = 2;  // what transformers takes when the file says nothing
  if (json.contains("num_labels") && json["num_labels"].is_number_unsigned()) {
    config.classes = static_cast<std::int64_t>(
        std::min<std::uint64_t>(json["num_labels"].get<std::uint64_t>(), kMostClasses));
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

/// Reads the fields of config.json that change the result; the rest (dropout of zero, pooler,
/// names) is left alone.
VitConfig read_vit_config(const std::filesystem::path& weights) {
  ConfigFile file(weights, "vit");
  VitConfig config;
  read_sizes(file, kAllVitFields, config);
  config.norm_eps = file.number_within("layer_norm_eps", 0, 1, config.norm_eps);
  config.init_std = file.number_within("initializer_range", 0, 100, config.init_std);
  if (file.text("hidden_act", "gelu") != "gelu")
    file.refuse("hidden_act", "\"gelu\", the only activation that dstrain has for ViT");
  if (!file.flag("qkv_bias", true)) file.refuse("qkv_bias", "true");
  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) {
    if (file.number(key, 0) != 0) file.refuse(key, "0; dstrain has no dropout for ViT");
  }
  read_labels(file.json(), config);
  file.raise();
  return config;
}

void choose_classes(const ModelConfig& recipe, int data_classes, VitConfig& config,
                    Problems& problems) {
  const std::int64_t wanted = recipe.classes != 0 ? recipe.classes : data_classes;
  if (wanted != 0 && wanted != config.classes) {
    config.classes = wanted;
    config.labels.clear();
  }
  if (config.classes < 1 || config.classes > kMostClasses) {
    problems.push_back(fmt::format("model.classes: {} is not a number of classes from 1 to {}",
                                   config.classes, kMostClasses));
  } else if (config.classes < data_classes) {
    problems.push_back(fmt::format("model.classes: {} are too few for the {} classes of the data",
                                   config.classes, data_classes));
  }
}

void check_sizes(const VitConfig& config, Problems& problems) {
  check_limits(kAllVitFields, config, problems);
  if (!problems.empty()) return;
  check_multiple("image_size", config.image_size, "patch_size", config.patch_size, problems);
  check_multiple("width", config.width, "heads", config.heads, problems);
}

}  // namespace

std::optional<VitConfig> vit_named(std::string name) {
  constexpr std::string_view kOwner = "google/";
  if (name.starts_with(kOwner)) name = name.substr(kOwner.size());
  VitConfig config;
  if (name == "vit-tiny") {
    config.width = 192, config.heads = 3, config.mlp_width = 768;
  } else if (name == "vit-large" || name == "vit-large-patch16-224") {
    config.width = 1024, config.layers = 24, config.heads = 16, config.mlp_width = 4096;
  } else if (name == "vit-huge" || name == "vit-huge-patch14-224-in21k") {
    config.width = 1280, config.layers = 32, config.heads = 16, config.mlp_width = 5120,
    config.patch_size = 14;
  } else if (name != "vit-base" && name != "vit-base-patch16-224") {
    return std::nullopt;
  }
  return config;
}

VitConfig vit_config(const ModelConfig& recipe, int data_classes) {
  Problems problems =
      foreign_keys(recipe, "ViT", {"classes", "image_size", "patch_size", "channels", "mlp_width"});
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  const std::optional<VitConfig> named = vit_named(recipe.name);
  const bool from_file = !recipe.weights.empty();
  VitConfig config = from_file ? read_vit_config(recipe.weights) : named.value_or(VitConfig{});
  if (from_file) {
    compare_sizes(recipe, named, kAllVitFields, config, problems);
  } else {
    override_sizes(recipe, kAllVitFields, config);
  }
  choose_classes(recipe, data_classes, config, problems);
  check_sizes(config, problems);
  raise_problems(ErrorKind::usage, problems,
                 from_file ? "leave the sizes out of the recipe: the weights have their own"
                           : "change the sizes under model");
  return config;
}

std::string vit_config_json(const VitConfig& config) {
  nlohmann::json json = {
      {"architectures", {"ViTForImageClassification"}},
      {"model_type", "vit"},
      {"attention_probs_dropout_prob", 0.0},
      {"encoder_stride", config.patch_size},
      {"hidden_act", "gelu"},
      {"hidden_dropout_prob", 0.0},
      {"initializer_range", config.init_std},
      {"layer_norm_eps", config.norm_eps},
      {"qkv_bias", true},
  };
  for (const Size<VitConfig>& size : kVitFields) json[size.model.file_keys[0]] = config.*size.size;
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
