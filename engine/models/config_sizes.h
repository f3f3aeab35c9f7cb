#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "recipes/schema/config_file.h"
#include "recipes/schema/model_sizes.h"
#include "recipes/schema/recipe.h"

namespace dstrain {

/// A size as recipe, config.json and we call it.
template <class Config>
struct Size {
  ModelSize model;
  std::int64_t Config::* size;
};

/// Sizes of the file into `config`; one that is missing keeps its value, or is a problem when that
/// is 0.
template <class Config>
void read_sizes(ConfigFile& file, std::span<const Size<Config>> sizes, Config& config) {
  for (const Size<Config>& size : sizes) {
    const char* key = file.key_of(size.model);
    if (!file.has(key) && config.*size.size == 0) {
      file.add_problem(fmt::format("{}: no {}", file.path().string(), key));
      continue;
    }
    config.*size.size = file.size(key, size.model.most, config.*size.size, size.model.image);
  }
}

/// What the recipe says beside its `weights` must be what `config`, read from there, has.
template <class Config>
void compare_sizes(const ModelConfig& recipe, const std::optional<Config>& named,
                   std::span<const Size<Config>> sizes, const Config& config, Problems& problems) {
  const std::string path = (std::filesystem::path(recipe.weights) / "config.json").string();
  for (const Size<Config>& size : sizes) {
    const std::int64_t in_file = config.*size.size;
    const std::int64_t in_recipe = recipe.*size.model.member;
    if (in_recipe != 0 && in_recipe != in_file) {
      problems.push_back(fmt::format("model.{}: {}", size.model.key,
                                     size_differs(size.model, in_recipe, path, in_file)));
    } else if (in_recipe == 0 && named && !size.model.image && (*named).*size.size != in_file) {
      problems.push_back(fmt::format("model.name: {} means {} {}, but {} has {} {}", recipe.name,
                                     size.model.key, (*named).*size.size, path,
                                     size.model.file_keys[0], in_file));
    }
  }
}

/// Sizes of the recipe over those of the name.
template <class Config>
void override_sizes(const ModelConfig& recipe, std::span<const Size<Config>> sizes,
                    Config& config) {
  for (const Size<Config>& size : sizes) {
    if (recipe.*size.model.member != 0) config.*size.size = recipe.*size.model.member;
  }
}

template <class Config>
void check_limits(std::span<const Size<Config>> sizes, const Config& config, Problems& problems) {
  for (const Size<Config>& size : sizes) {
    if (config.*size.size < 1 || config.*size.size > size.model.most) {
      problems.push_back(fmt::format("model.{}: {} is not between 1 and {}", size.model.key,
                                     config.*size.size, size.model.most));
    }
  }
}

/// "model.width: 192 is not a multiple of model.heads (7)".
inline void check_multiple(const char* key, std::int64_t value, const char* of,
                           std::int64_t divisor, Problems& problems) {
  if (value % divisor != 0) {
    problems.push_back(
        fmt::format("model.{}: {} is not a multiple of model.{} ({})", key, value, of, divisor));
  }
}

}  // namespace dstrain
