#include "engine/recipe/config_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/model_folder.h"

namespace dstrain {
namespace {

constexpr double kMinEps = 1e-12, kMinMomentum = 1e-6;

std::filesystem::path config_path(const std::filesystem::path& weights) {
  const std::filesystem::path path = weights / "config.json";
  if (path_exists(path)) return path;
  const std::string hint = hint_for_model_folder(weights);
  throw Error(ErrorKind::data,
              fmt::format("model.weights: {} has no config.json", weights.string()),
              !hint.empty() ? hint
                            : "name a folder with config.json and model.safetensors, from Hugging "
                              "Face or `dstrain checkpoint export`");
}

}  // namespace

void raise_problems(ErrorKind kind, const Problems& problems, const std::string& hint) {
  if (!problems.empty()) throw Error(kind, fmt::format("{}", fmt::join(problems, "\n")), hint);
}

std::vector<std::string> foreign_keys(const ModelConfig& recipe, const ModelFamily& family) {
  std::vector<std::string> keys;
  std::set<std::string_view> asked;
  const auto check = [&](std::string_view key, bool set, bool own) {
    if (set && !own && asked.insert(key).second) keys.push_back(fmt::format("model.{}", key));
  };
  check("classes", recipe.classes != 0, family.modality == Modality::images);
  for (const ModelFamily& any : model_families()) {
    for (const ModelSize& size : any.sizes)
      check(size.key, recipe.*size.member != 0,
            std::ranges::find(family.sizes, size.key, &ModelSize::key) != family.sizes.end());
  }
  check("rope_theta", recipe.rope_theta != 0, family.rotary);
  return keys;
}

Problems foreign_key_problems(const ModelConfig& recipe, const ModelFamily& family) {
  Problems problems;
  for (const std::string& key : foreign_keys(recipe, family))
    problems.push_back(fmt::format("{}: {} has none", key, family.title));
  return problems;
}

std::string model_type_of(const std::filesystem::path& weights) {
  const nlohmann::json json = read_json_object(config_path(weights));
  const auto found = json.find("model_type");
  if (found == json.end()) return "";
  return found->is_string() ? found->get<std::string>() : shown_json(*found);
}

std::string architecture_named_in(const std::filesystem::path& weights) {
  const nlohmann::json json = read_json_object(config_path(weights));
  const auto found = json.find("architecture");
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

TimmModel timm_model_in(ConfigFile& file) {
  const std::string architecture = file.text("architecture", "");
  TimmModel model;
  model.published = published_architecture(architecture);
  if (model.published == nullptr) return model;
  model.norm = model.published->norm;
  if (!file.has("model_args")) return model;
  if (!file.json().at("model_args").is_object()) {
    file.refuse("model_args", "an object");
    return model;
  }
  ConfigFile args = ConfigFile::of_object(file.path(), file.json().at("model_args"));
  model.norm.eps = args.number_within("bn_eps", kMinEps, 1, model.norm.eps);
  model.norm.momentum = args.number_within("bn_momentum", kMinMomentum, 1, model.norm.momentum);
  for (const std::string& problem : args.problems()) file.add_problem(problem);
  if (const PublishedModel* variant = timm_variant(architecture, model.norm); variant != nullptr)
    model.published = variant;
  return model;
}

std::string size_differs(const ModelSize& size, std::int64_t in_recipe, const std::string& file,
                         std::int64_t in_file) {
  const bool positions = size.key == "image_size";
  return fmt::format("{} in the recipe, but {} has {} {}{}", in_recipe, file, size.file_keys[0],
                     in_file,
                     positions ? "; dstrain does not interpolate position embeddings" : "");
}

ConfigFile::ConfigFile(std::filesystem::path path) : path_(std::move(path)) {
  json_ = read_json_object(path_);
}

ConfigFile ConfigFile::of_object(std::filesystem::path path, nlohmann::json json) {
  ConfigFile file;
  file.path_ = std::move(path);
  file.json_ = std::move(json);
  return file;
}

ConfigFile::ConfigFile(const std::filesystem::path& weights, const std::string& model_type)
    : ConfigFile(config_path(weights)) {
  const std::string type = text("model_type", "");
  if (type == model_type) return;
  throw Error(
      ErrorKind::data,
      fmt::format("{}: model_type is '{}', not '{}'", path_.string(), type, model_type),
      fmt::format("model.weights needs the folder of a {} model that transformers' save_pretrained "
                  "wrote",
                  model_type));
}

ConfigFile ConfigFile::of_family(const ModelFamily& family) const {
  if (family.tower == nullptr) return *this;
  // transformers goes by NAME_dict, which early files have, too.
  std::string key = fmt::format("{}_dict", family.tower);
  if (!has(key)) key = family.tower;
  ConfigFile tower = of_object(fmt::format("{}: {}", path_.string(), key),
                               has(key) ? json_.at(key) : nlohmann::json::object());
  if (tower.json_.is_object()) return tower;
  tower.add_problem(fmt::format("{}: {} is no object", path_.string(), key));
  tower.json_ = nlohmann::json::object();
  return tower;
}

const char* ConfigFile::key_of(const ModelSize& size) const {
  return !has(size.file_keys[0]) && size.file_keys[1] != nullptr ? size.file_keys[1]
                                                                 : size.file_keys[0];
}

bool ConfigFile::has(const std::string& key) const {
  return json_.contains(key) && !json_[key].is_null();
}

std::string ConfigFile::text(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  return json_[key].is_string() ? json_[key].get<std::string>() : shown_json(json_[key]);
}

double ConfigFile::number(const char* key, double otherwise) {
  if (!has(key)) return otherwise;
  if (json_[key].is_number()) return json_[key].get<double>();
  refuse(key, "a number");
  return otherwise;
}

double ConfigFile::number_within(const char* key, double min, double max, double otherwise) {
  const double value = number(key, otherwise);
  if (value >= min && value <= max) return value;
  refuse(key, fmt::format("a number from {} to {}", min, max));
  return otherwise;
}

bool ConfigFile::flag(const char* key, bool otherwise) {
  if (!has(key)) return otherwise;
  if (json_[key].is_boolean()) return json_[key].get<bool>();
  refuse(key, "true or false");
  return otherwise;
}

std::int64_t ConfigFile::size(const char* key, std::int64_t max, std::int64_t otherwise,
                              bool pair) {
  if (!has(key)) return otherwise;
  const nlohmann::json& value = json_[key];
  const bool two = pair && value.is_array() && value.size() == 2 && value[0] == value[1];
  const nlohmann::json& one = two ? value[0] : value;
  if (one.is_number_unsigned() && one.get<std::uint64_t>() >= 1 &&
      one.get<std::uint64_t>() <= static_cast<std::uint64_t>(max)) {
    return one.get<std::int64_t>();
  }
  refuse(key, fmt::format("a whole number from 1 to {}", max));
  return otherwise;
}

void ConfigFile::refuse(const char* key, const std::string& wanted) {
  const std::string found = has(key) ? "is " + shown_json(json_[key]) : "is missing";
  problems_.push_back(fmt::format("{}: {} {}; it must be {}", path_.string(), key, found, wanted));
}

void ConfigFile::raise(const std::string& hint) const {
  raise_problems(ErrorKind::data, problems_, hint);
}

std::optional<ConfigFile> pretrained_cfg(const ConfigFile& config) {
  if (!config.has("pretrained_cfg") || !config.json().at("pretrained_cfg").is_object())
    return std::nullopt;
  return ConfigFile::of_object(config.path(), config.json().at("pretrained_cfg"));
}

}  // namespace dstrain
