#include "engine/models/image/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/models/class_names.h"
#include "engine/models/config_sizes.h"
#include "engine/recipe/config_file.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMaxClasses = 1 << 20;
constexpr std::int64_t kUsualClasses = 1000;  ///< where neither recipe, data nor weights say it

BatchNormOptions::Over statistics_over(BatchNormOver over) {
  switch (over) {
    case BatchNormOver::ranks:
      return BatchNormOptions::Over::ranks;
    case BatchNormOver::running:
      return BatchNormOptions::Over::running;
    case BatchNormOver::micro_batch:
      break;
  }
  return BatchNormOptions::Over::micro_batch;
}

struct FolderClasses {
  std::int64_t number = 0;         ///< 0: it says none
  std::vector<std::string> names;  ///< none: it says none, or too few
};

/// timm has a list of names in the file, or in its pretrained_cfg.
std::vector<std::string> label_names_in(const nlohmann::json& json) {
  const auto is_text = [](const nlohmann::json& name) { return name.is_string(); };
  for (const char* place : {"/label_names", "/pretrained_cfg/label_names"}) {
    const nlohmann::json::json_pointer pointer(place);
    if (!json.contains(pointer)) continue;
    const nlohmann::json& names = json.at(pointer);
    if (names.is_array() && std::ranges::all_of(names, is_text))
      return names.get<std::vector<std::string>>();
  }
  return {};
}

/// Classes of the folder's config.json.
FolderClasses classes_of_folder(const ModelConfig& recipe, const PublishedModel& published) {
  const std::filesystem::path path = std::filesystem::path(recipe.weights) / "config.json";
  if (recipe.weights.empty() || !path_exists(path)) return {};
  ConfigFile file(path);
  const PublishedModel* found = timm_model_in(file).published;
  if (file.has("architecture") &&
      (found == nullptr || architecture_of(*found) != architecture_of(published))) {
    throw Error(ErrorKind::data,
                fmt::format("{}: architecture is '{}', not {}", path.string(),
                            file.text("architecture", ""), published.name),
                "change model.name, or choose other weights");
  }
  const std::int64_t classes = file.size("num_classes", kMaxClasses, 0);
  file.raise();
  return {.number = classes, .names = label_names_in(file.json())};
}

/// Cut axes have no part of a convolution.
void refuse_cuts(const Splits& splits, std::string_view title, Problems& problems) {
  if (!splits.tensor.whole())
    problems.push_back(fmt::format("parallel.tensor: {} ranks, but {} is not cut by tensor ranks",
                                   splits.tensor.count, title));
  if (!splits.sequence.whole())
    problems.push_back(fmt::format("parallel.sequence: {} ranks, but {} has no sequences",
                                   splits.sequence.count, title));
}

}  // namespace

const PublishedModel& published_image_model(const ModelConfig& recipe) {
  const PublishedModel* published = published_model(recipe.name);
  if (recipe.name.empty()) {
    ConfigFile file(std::filesystem::path(recipe.weights) / "config.json");
    published = timm_model_in(file).published;
  }
  DSTRAIN_CHECK(published != nullptr, "a convolutional model without a name");
  return *published;
}

ImageModelConfig image_model_config(const ModelConfig& recipe, const ModelFamily& family,
                                    const ModelInputs& inputs, const NamedDefaults& defaults) {
  Problems problems = foreign_key_problems(recipe, family);
  refuse_cuts(inputs.splits, family.title, problems);
  raise_problems(ErrorKind::usage, problems, "leave it out of the recipe");
  const PublishedModel* published = &published_image_model(recipe);
  ModelSizes sizes = published->sizes;
  for (const ModelSize& size : family.sizes) {
    if (recipe.*size.member != 0) sizes.*size.size = recipe.*size.member;
  }
  ImageModelConfig config{
      .published = published,
      .image_size = sizes.image_size,
      .channels = sizes.channels,
      .norm = {.over = statistics_over(inputs.batch_norm.over),
               .momentum = published->norm.momentum,
               .eps = published->norm.eps},
      .norm_args = family.norm_args,
      .dropout = recipe.dropout >= 0 ? recipe.dropout : defaults.dropout,
      .drop_path = recipe.drop_path >= 0 ? recipe.drop_path : defaults.drop_path};
  if (inputs.batch_norm.momentum > 0) config.norm.momentum = inputs.batch_norm.momentum;
  if (inputs.batch_norm.eps > 0) config.norm.eps = inputs.batch_norm.eps;
  const FolderClasses in_folder = classes_of_folder(recipe, *published);
  config.classes = recipe.classes != 0     ? recipe.classes
                   : inputs.classes != 0   ? inputs.classes
                   : in_folder.number != 0 ? in_folder.number
                                           : kUsualClasses;
  check_limits(family, sizes, problems);
  if (config.image_size < defaults.smallest_image) {
    problems.push_back(fmt::format("model.image_size: {} pixels are too few for {}, use {} or more",
                                   config.image_size, published->name, defaults.smallest_image));
  }
  if (config.classes < 1 || config.classes > kMaxClasses) {
    problems.push_back(fmt::format("model.classes: {} is not a number of classes from 1 to {}",
                                   config.classes, kMaxClasses));
  } else if (config.classes < inputs.classes) {
    problems.push_back(fmt::format("model.classes: {} are too few for the {} classes of the data",
                                   config.classes, inputs.classes));
  }
  raise_problems(ErrorKind::usage, problems, "change the sizes under model");
  ClassNames chosen = choose_class_names(inputs.class_names, in_folder.names, config.classes);
  config.class_names = std::move(chosen.names);
  if (!chosen.note.empty()) config.notes.push_back(std::move(chosen.note));
  return config;
}

Model image_model(const ImageModelConfig& config, const ModelInputs& inputs, Blocks blocks) {
  const std::string_view architecture = architecture_of(*config.published);
  nlohmann::json json = {{"architecture", architecture},
                         {"num_classes", config.classes},
                         {"pretrained_cfg",
                          {{"input_size", {config.channels, config.image_size, config.image_size}},
                           {"num_classes", config.classes}}}};
  const PublishedModel* timms = published_architecture(architecture);
  const NormConstants norm = {.eps = config.norm.eps, .momentum = config.norm.momentum};
  if (config.norm_args && timms != nullptr && norm != timms->norm)
    json["model_args"] = {{"bn_eps", norm.eps}, {"bn_momentum", norm.momentum}};
  if (!config.class_names.empty()) json["label_names"] = config.class_names;
  return {.blocks = std::move(blocks),
          .config_json = json_text(json, 2) + "\n",
          .image_size = static_cast<int>(config.image_size),
          .channels = static_cast<int>(config.channels),
          .classes = static_cast<int>(config.classes),
          .class_names = config.class_names,
          .notes = config.notes,
          .bucket = inputs.bucket,
          .drops = config.dropout > 0 || config.drop_path > 0,
          .tokens = 1};
}

}  // namespace dstrain
