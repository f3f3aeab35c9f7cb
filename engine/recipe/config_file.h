#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/recipe/families.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Sentences about what does not fit, gathered so that all of them are shown at once.
using Problems = std::vector<std::string>;

/// Throws Error of `kind` with one problem a line, if there are any.
void raise_problems(ErrorKind kind, const Problems& problems, const std::string& hint);

/// "model.patch_size": the keys that the recipe sets and the family lacks.
[[nodiscard]] std::vector<std::string> foreign_keys(const ModelConfig& recipe,
                                                    const ModelFamily& family);
/// A problem with each.
[[nodiscard]] Problems foreign_key_problems(const ModelConfig& recipe, const ModelFamily& family);

/// "192 in the recipe, but FILE has hidden_size 768".
[[nodiscard]] std::string size_differs(const ModelSize& size, std::int64_t in_recipe,
                                       const std::string& file, std::int64_t in_file);

/// model_type of the config.json in the folder `weights`. Error{data} when there is none.
[[nodiscard]] std::string model_type_of(const std::filesystem::path& weights);

/// timm's name of the model in that file; empty where there is none.
[[nodiscard]] std::string architecture_named_in(const std::filesystem::path& weights);

class ConfigFile;
/// A model as a config.json of timm has it.
struct TimmModel {
  const PublishedModel* published = nullptr;  ///< null: dstrain has none of its `architecture`
  NormConstants norm;                         ///< by its `model_args`
};
/// A file without `architecture` has no model. What `model_args` may not be is a problem of `file`.
[[nodiscard]] TimmModel timm_model_in(ConfigFile& file);

/// Fields of a config.json by kind. A field that is not what it must be becomes a problem, and the
/// value asked for is `otherwise`, as when it is missing or null.
class ConfigFile {
 public:
  /// Error{data} when it cannot be read or holds no object.
  explicit ConfigFile(std::filesystem::path path);
  /// An object out of the file `path`.
  [[nodiscard]] static ConfigFile of_object(std::filesystem::path path, nlohmann::json json);
  /// That of the folder `weights`. Error{data} when it is missing or for another `model_type`.
  ConfigFile(const std::filesystem::path& weights, const std::string& model_type);

  /// The object that has the family's sizes: the file's own, or that of ModelFamily::tower.
  [[nodiscard]] ConfigFile of_family(const ModelFamily& family) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const nlohmann::json& json() const { return json_; }
  [[nodiscard]] bool has(const std::string& key) const;
  /// The name under which the file has the size; today's when it has none.
  [[nodiscard]] const char* key_of(const ModelSize& size) const;

  [[nodiscard]] std::string text(const char* key, const std::string& otherwise) const;
  [[nodiscard]] double number(const char* key, double otherwise);
  /// From `min` to `max`.
  [[nodiscard]] double number_within(const char* key, double min, double max, double otherwise);
  [[nodiscard]] bool flag(const char* key, bool otherwise);
  /// From 1 to `max`; with `pair` also twice the same, as height and width may stand apart.
  [[nodiscard]] std::int64_t size(const char* key, std::int64_t max, std::int64_t otherwise,
                                  bool pair = false);

  /// "config.json: KEY is VALUE; it must be WANTED".
  void refuse(const char* key, const std::string& wanted);
  void add_problem(std::string problem) { problems_.push_back(std::move(problem)); }
  [[nodiscard]] const Problems& problems() const { return problems_; }
  /// Error{data} with all problems.
  void raise(const std::string& hint = "change config.json, or choose other weights") const;

 private:
  ConfigFile() = default;

  std::filesystem::path path_;
  nlohmann::json json_;
  Problems problems_;
};

/// timm's object of that name in a model's config.json: how its images are prepared.
[[nodiscard]] std::optional<ConfigFile> pretrained_cfg(const ConfigFile& config);

}  // namespace dstrain
