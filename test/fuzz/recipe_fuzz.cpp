#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/recipe/load.h"
#include "engine/recipe/render.h"

/// Any bytes give a recipe or a RecipeError, and a recipe reads back as itself. Text after a NUL is
/// an override.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view text = input.substr(0, input.find('\0'));
  std::vector<std::string> overrides;
  while (input.find('\0') != std::string_view::npos && overrides.size() < 4) {
    input.remove_prefix(input.find('\0') + 1);
    overrides.emplace_back(input.substr(0, input.find('\0')));
  }
  try {
    const dstrain::LoadedRecipe loaded = dstrain::parse_recipe(text, "fuzz.yaml", overrides);
    (void)dstrain::recipe_json(loaded);
    if (dstrain::parse_recipe(dstrain::resolved_yaml(loaded), "again.yaml").recipe !=
        loaded.recipe) {
      std::abort();
    }
  } catch (const dstrain::RecipeError& error) {
    if (error.diagnostics().empty()) std::abort();
  }
  return 0;
}
