#include "engine/models/config_sizes.h"

#include <fmt/format.h>

#include "engine/base/json.h"

namespace dstrain {

ModelSizes read_sizes(ConfigFile& file, const ModelFamily& family) {
  ModelSizes sizes = family.defaults;
  for (const ModelSize& size : family.sizes) {
    const char* key = file.key_of(size);
    if (!file.has(key) && sizes.*size.size == 0 && !size.optional) {
      file.add_problem(fmt::format("{}: no {}", file.path().string(), key));
      continue;
    }
    sizes.*size.size = file.size(key, size.max, sizes.*size.size, size.image);
  }
  return sizes;
}

void compare_sizes(const ModelConfig& recipe, const ModelFamily& family, const ModelSizes& sizes,
                   Problems& problems) {
  const std::string path = (std::filesystem::path(recipe.weights) / "config.json").string();
  // A folder's model_type says no sizes, though it may be the name of a model, too (GPT-2).
  const PublishedModel* named = recipe.name == family.name ? nullptr : published_model(recipe.name);
  for (const ModelSize& size : family.sizes) {
    const std::int64_t in_file = sizes.*size.size;
    const std::int64_t in_recipe = recipe.*size.member;
    if (in_recipe != 0 && in_recipe != in_file) {
      problems.push_back(
          fmt::format("model.{}: {}", size.key, size_differs(size, in_recipe, path, in_file)));
    } else if (in_recipe == 0 && named != nullptr && !size.image &&
               named->sizes.*size.size != in_file) {
      problems.push_back(fmt::format("model.name: {} means {} {}, but {} has {} {}", recipe.name,
                                     size.key, named->sizes.*size.size, path, size.file_keys[0],
                                     in_file));
    }
  }
}

ModelSizes named_sizes(const ModelConfig& recipe, const ModelFamily& family) {
  const PublishedModel* named = published_model(recipe.name);
  ModelSizes sizes = named != nullptr ? named->sizes : family.defaults;
  for (const ModelSize& size : family.sizes) {
    if (recipe.*size.member != 0) sizes.*size.size = recipe.*size.member;
  }
  return sizes;
}

void check_limits(const ModelFamily& family, const ModelSizes& sizes, Problems& problems) {
  for (const ModelSize& size : family.sizes) {
    const std::int64_t value = sizes.*size.size;
    if (size.optional && value == 0) continue;
    if (value < 1 || value > size.max) {
      problems.push_back(
          fmt::format("model.{}: {} is not between 1 and {}", size.key, value, size.max));
    }
  }
}

void check_multiple(const char* key, std::int64_t value, const char* of, std::int64_t divisor,
                    Problems& problems) {
  if (value % divisor != 0) {
    problems.push_back(
        fmt::format("model.{}: {} is not a multiple of model.{} ({})", key, value, of, divisor));
  }
}

void raise_size_problems(const ModelConfig& recipe, const Problems& problems) {
  raise_problems(ErrorKind::usage, problems,
                 recipe.weights.empty()
                     ? "change the sizes under model"
                     : "leave the sizes out of the recipe: the weights have their own");
}

void note_dropouts(ConfigFile& file, std::initializer_list<const char*> keys,
                   const ModelFamily& family, std::vector<std::string>& notes) {
  for (const char* key : keys) {
    if (file.number(key, 0) == 0) continue;
    notes.push_back(fmt::format("{}: {} is {}; dstrain trains {} without dropout",
                                file.path().string(), key, shown_json(file.json().at(key)),
                                family.title));
  }
}

void write_sizes(const ModelFamily& family, const ModelSizes& sizes, nlohmann::json& json) {
  for (const ModelSize& size : family.sizes) json[size.file_keys[0]] = sizes.*size.size;
}

}  // namespace dstrain
