#include "cmd/overrides.h"

#include <algorithm>

namespace dstrain {

void add_overrides(CLI::App& app, std::vector<std::string>& overrides) {
  app.add_option("--set", overrides, "Override a value: path.to.key=value. Repeatable.")
      ->allow_extra_args(false);
}

LoadedRecipe with_settings(const std::string& recipe, std::vector<std::string> overrides,
                           const std::vector<std::string>& settings, const std::string& origin) {
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  LoadedRecipe loaded = load_recipe(recipe, overrides);
  for (Origin& key : loaded.origins) {
    const bool set = std::ranges::any_of(
        settings, [&](const std::string& setting) { return setting.starts_with(key.path + "="); });
    if (set) key.origin = origin;
  }
  return loaded;
}

}  // namespace dstrain
