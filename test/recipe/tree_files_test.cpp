#include <algorithm>
#include <filesystem>

#include "engine/recipe/load.h"
#include "test/recipe/golden.h"

namespace dstrain {

TEST_CASE("every recipe in the tree loads without a warning, says what it is and reads back",
          "[recipe]") {
  ::unsetenv("DSTRAIN_DATA");
  int num_recipes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    ++num_recipes;
    const std::string path = entry.path().string();
    CAPTURE(path);
    CHECK(test::read_text(path).starts_with("# " + path + " - "));
    const LoadedRecipe loaded = load_recipe(path);
    CHECK(loaded.warnings.empty());
    const LoadedRecipe again = parse_recipe(resolved_yaml(loaded), "resolved.yaml");
    CHECK(again.recipe == loaded.recipe);
    CHECK(again.warnings.empty());
  }
  CHECK(num_recipes >= 13);
}

TEST_CASE("a recipe's name ends with its strategy, or says that it has adapters", "[recipe]") {
  for (const auto& entry : std::filesystem::directory_iterator("recipes/vit")) {
    const std::string name = entry.path().stem().string();
    const std::string strategy = name.substr(name.rfind('_') + 1);
    CAPTURE(name);
    const Recipe recipe = load_recipe(entry.path()).recipe;
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
  for (const auto& entry : std::filesystem::recursive_directory_iterator("recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string name = entry.path().stem().string();
    const std::string strategy = name.substr(name.rfind('_') + 1);
    CAPTURE(name);
    const int stage = load_recipe(entry.path()).recipe.parallel.zero.stage;
    if (strategy == "ddp") CHECK(stage == 0);
    if (strategy == "zeropp") CHECK(stage == 3);
    if (strategy == "zero1" || strategy == "zero2" || strategy == "zero3")
      CHECK(strategy == "zero" + std::to_string(stage));
    named += strategy == "ddp" || strategy.starts_with("zero") ? 1 : 0;
  }
  CHECK(named >= 50);
}

}  // namespace dstrain
