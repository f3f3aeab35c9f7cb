#pragma once

#include <string>

#include "engine/recipe/load.h"

namespace dstrain::test {

/// A small good recipe; `more` is appended as further lines.
inline std::string small_recipe(const std::string& more = {}) {
  return "model: { name: vit-tiny }\n"
         "data: { name: digits }\n"
         "batch: { global: 64, micro: 16 }\n"
         "run: { epochs: 1 }\n" +
         (more.find("optimizer:") == std::string::npos ? "optimizer: { lr: 1e-3 }\n"
                                                       : std::string()) +
         more;
}

/// What is said about the text of a recipe.
inline std::string error_of(const std::string& text) {
  try {
    (void)parse_recipe(text, "r.yaml");
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "accepted";
}

inline std::string origin_of(const LoadedRecipe& loaded, const std::string& path) {
  for (const Origin& origin : loaded.origins) {
    if (origin.path == path) return origin.origin;
  }
  return "not listed";
}

}  // namespace dstrain::test
