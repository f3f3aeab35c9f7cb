#include "engine/models/vit_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/json_file.h"

namespace dstrain {
namespace {

using Problems = std::vector<std::string>;

/// A size as recipe, config.json and we call it.
struct Size {
  const char* recipe_key;
  const char* file_key;
  int ModelConfig::* recipe;
  std::int64_t VitConfig::* size;
  std::int64_t most;
};
constexpr std::array<Size, 7> kSizes = {{
    {"image_size", "image_size", &ModelConfig::image_size, &VitConfig::image_size, 16384},
    {"patch_size", "patch_size", &ModelConfig::patch_size, &VitConfig::patch_size, 1024},
    {"channels", "num_channels", &ModelConfig::channels, &VitConfig::channels, 1024},
    {"width", "hidden_size", &ModelConfig::width, &VitConfig::width, 65536},
    {"layers", "num_hidden_layers", &ModelConfig::layers, &VitConfig::layers, 4096},
    {"heads", "num_attention_heads", &ModelConfig::heads, &VitConfig::heads, 4096},
    {"mlp_width", "intermediate_size", &ModelConfig::mlp_width, &VitConfig::mlp_width, 1 << 20},
}};
constexpr std::int64_t kMostClasses = 1 << 20;

void raise(ErrorKind kind, const Problems& problems, const std::string& hint) {
  if (!problems.empty()) throw Error(kind, fmt::format("{}", fmt::join(problems, "\n")), hint);
}

/// The sizes of a name, as google/vit-base-patch16-224; nothing when the name is not known.
std::optional<VitConfig> named_config(std::string name) {
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

/// Reads the fields of config.json that change the result; the rest (dropout of zero, pooler,
/// names) is left alone.
class ConfigFile {
 public:
  explicit ConfigFile(const std::filesystem::path& path)
      : path_(path), json_(read_json_object(path)) {}

  VitConfig read() {
    if (const std::string type = text("model_type", ""); type != "vit") {
      throw Error(
          ErrorKind::data, fmt::format("{}: model_type is '{}', not 'vit'", path_.string(), type),
          "model.weights needs the folder of a ViT that transformers' save_pretrained wrote");
    }
    VitConfig config;
    for (const Size& size : kSizes) read_size(size, config);
    config.norm_eps = number("layer_norm_eps", config.norm_eps);
    if (!(config.norm_eps > 0 && config.norm_eps < 1))
      refuse("layer_norm_eps", "a number between 0 and 1");
    config.init_std = number("initializer_range", config.init_std);
    if (!(config.init_std >= 0 && config.init_std < 100))
      refuse("initializer_range", "a number from 0 to 100");
    if (text("hidden_act", "gelu") != "gelu")
      refuse("hidden_act", "\"gelu\", the only activation that dstrain has for ViT");
    if (json_.contains("qkv_bias") && json_["qkv_bias"] != true) refuse("qkv_bias", "true");
    for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) {
      if (number(key, 0) != 0) refuse(key, "0; dstrain has no dropout for ViT");
    }
    read_labels(config);
    raise(ErrorKind::data, problems_, "change config.json, or choose other weights");
    return config;
  }

 private:
  void refuse(const char* key, const std::string& wanted) {
    problems_.push_back(
        fmt::format("{}: {} is {}; it must be {}", path_.string(), key, json_[key].dump(), wanted));
  }

  std::string text(const char* key, const std::string& otherwise) {
    if (!json_.contains(key)) return otherwise;
    return json_[key].is_string() ? json_[key].get<std::string>() : json_[key].dump();
  }

  double number(const char* key, double otherwise) {
    if (!json_.contains(key)) return otherwise;
    if (json_[key].is_number()) return json_[key].get<double>();
    refuse(key, "a number");
    return otherwise;
  }

  void read_size(const Size& size, VitConfig& config) {
    if (!json_.contains(size.file_key)) return;
    const nlohmann::json& value = json_[size.file_key];
    // Height and width may stand apart.
    const bool pair = value.is_array() && value.size() == 2 && value[0] == value[1];
    const nlohmann::json& one = pair ? value[0] : value;
    if (!one.is_number_unsigned() || one.get<std::uint64_t>() < 1 ||
        one.get<std::uint64_t>() > static_cast<std::uint64_t>(size.most)) {
      refuse(size.file_key, fmt::format("a whole number from 1 to {}", size.most));
      return;
    }
    config.*size.size = one.get<std::int64_t>();
  }

  void read_labels(VitConfig& config) {
    config.classes = 2;  // what transformers takes when the file says nothing
    if (json_.contains("num_labels") && json_["num_labels"].is_number_unsigned()) {
      config.classes = static_cast<std::int64_t>(
          std::min<std::uint64_t>(json_["num_labels"].get<std::uint64_t>(), kMostClasses));
    }
    if (!json_.contains("id2label") || !json_["id2label"].is_object()) return;
    const nlohmann::json& names = json_["id2label"];
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

  std::filesystem::path path_;
  nlohmann::json json_;
  Problems problems_;
};

/// Sizes of the file; what the recipe says beside it must be the same.
VitConfig config_of_weights(const ModelConfig& recipe, const std::optional<VitConfig>& named,
                            Problems& problems) {
  const std::filesystem::path path = std::filesystem::path(recipe.weights) / "config.json";
  VitConfig config = ConfigFile(path).read();
  for (const Size& size : kSizes) {
    const std::int64_t in_file = config.*size.size;
    const std::int64_t in_recipe = recipe.*size.recipe;
    const bool is_image = size.size == &VitConfig::image_size;
    if (in_recipe != 0 && in_recipe != in_file) {
      problems.push_back(
          fmt::format("model.{}: {} in the recipe, but {} has {} {}{}", size.recipe_key, in_recipe,
                      path.string(), size.file_key, in_file,
                      is_image ? "; dstrain does not interpolate position embeddings" : ""));
    } else if (in_recipe == 0 && named && !is_image && (*named).*size.size != in_file) {
      problems.push_back(fmt::format("model.name: {} means {} {}, but {} has {} {}", recipe.name,
                                     size.recipe_key, (*named).*size.size, path.string(),
                                     size.file_key, in_file));
    }
  }
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
  for (const Size& size : kSizes) {
    if (config.*size.size < 1 || config.*size.size > size.most) {
      problems.push_back(fmt::format("model.{}: {} is not between 1 and {}", size.recipe_key,
                                     config.*size.size, size.most));
    }
  }
  if (!problems.empty()) return;
  if (config.image_size % config.patch_size != 0) {
    problems.push_back(
        fmt::format("model.image_size: {} is not a multiple of model.patch_size ({})",
                    config.image_size, config.patch_size));
  }
  if (config.width % config.heads != 0) {
    problems.push_back(fmt::format("model.width: {} is not a multiple of model.heads ({})",
                                   config.width, config.heads));
  }
}

}  // namespace

VitConfig vit_config(const ModelConfig& recipe, int data_classes) {
  const std::optional<VitConfig> named = named_config(recipe.name);
  if (!named && (!recipe.name.empty() || recipe.weights.empty())) {
    throw Error(ErrorKind::usage,
                fmt::format("model.name: '{}' is no model that dstrain knows", recipe.name),
                "known: vit-tiny, vit-base, vit-large, vit-huge, vit-base-patch16-224, "
                "vit-large-patch16-224, "
                "vit-huge-patch14-224-in21k, the last three also after google/");
  }
  if (!recipe.weights.empty() &&
      !std::filesystem::exists(std::filesystem::path(recipe.weights) / "config.json")) {
    throw Error(ErrorKind::data,
                fmt::format("model.weights: {} has no config.json", recipe.weights),
                "name a folder with config.json and model.safetensors, from Hugging Face or "
                "`dstrain checkpoint export`");
  }
  Problems problems;
  VitConfig config = recipe.weights.empty() ? *named : config_of_weights(recipe, named, problems);
  if (recipe.weights.empty()) {
    for (const Size& size : kSizes) {
      if (recipe.*size.recipe != 0) config.*size.size = recipe.*size.recipe;
    }
  }
  choose_classes(recipe, data_classes, config, problems);
  check_sizes(config, problems);
  raise(ErrorKind::usage, problems,
        recipe.weights.empty() ? "change the sizes under model"
                               : "leave the sizes out of the recipe: the weights have their own");
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
  for (const Size& size : kSizes) json[size.file_key] = config.*size.size;
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
  return json.dump(2) + "\n";
}

}  // namespace dstrain
