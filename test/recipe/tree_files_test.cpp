#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "engine/recipe/variants.h"
#include "test/recipe/golden.h"

namespace dstrain {

/// Paths of the recipes of a folder.
std::vector<std::filesystem::path> recipes_of(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    for (std::filesystem::path& path : recipe_paths(entry.path())) paths.push_back(std::move(path));
  }
  return paths;
}

TEST_CASE("every recipe in the tree loads without a warning, says what it is and reads back",
          "[recipe]") {
  ::unsetenv("DSTRAIN_DATA");
  int num_recipes = 0;
  for (const std::filesystem::path& recipe : recipes_of("recipes")) {
    ++num_recipes;
    const std::string path = recipe.string();
    CAPTURE(path);
    const auto variant = find_variant(recipe);
    const std::string file = variant ? variant->file.string() : path;
    CHECK(test::read_text(file).starts_with("# " + file + " - "));
    const LoadedRecipe loaded = load_recipe(path);
    CHECK(loaded.warnings.empty());
    const LoadedRecipe again = parse_recipe(resolved_yaml(loaded), "resolved.yaml");
    CHECK(again.recipe == loaded.recipe);
    CHECK(again.warnings.empty());
  }
  CHECK(num_recipes >= 90);
}

TEST_CASE("a recipe's name ends with its strategy, or says that it has adapters", "[recipe]") {
  for (const std::filesystem::path& path : recipes_of("recipes/vit")) {
    const std::string name = path.stem().string();
    const std::string strategy = name.substr(name.rfind('_') + 1);
    CAPTURE(name);
    const Recipe recipe = load_recipe(path).recipe;
    const int stage = recipe.parallel.zero.stage;
    const bool plusplus =
        recipe.precision.gather != GatherType::compute || recipe.parallel.zero.second_shard > 1;
    const std::string expected = recipe.lora.rank > 0 ? "lora"
                                 : plusplus           ? "zeropp"
                                 : stage == 0         ? "ddp"
                                                      : "zero" + std::to_string(stage);
    CHECK(strategy == expected);
  }
}

TEST_CASE("a strategy in a recipe's name is its ZeRO stage, ddp stage 0", "[recipe]") {
  int named = 0;
  for (const std::filesystem::path& path : recipes_of("recipes")) {
    const std::string name = path.stem().string();
    const std::string strategy = name.substr(name.rfind('_') + 1);
    CAPTURE(name);
    const int stage = load_recipe(path).recipe.parallel.zero.stage;
    if (strategy == "ddp") CHECK(stage == 0);
    if (strategy == "zeropp") CHECK(stage == 3);
    if (strategy == "zero1" || strategy == "zero2" || strategy == "zero3")
      CHECK(strategy == "zero" + std::to_string(stage));
    named += strategy == "ddp" || strategy.starts_with("zero") ? 1 : 0;
  }
  CHECK(named >= 50);
}

}  // namespace dstrain
