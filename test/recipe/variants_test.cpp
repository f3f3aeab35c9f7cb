#include "engine/recipe/variants.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>

#include "engine/recipe/load.h"
#include "test/recipe/golden.h"
#include "test/recipe/recipes.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

const std::string kVariantsOfSmall =
    "variants:\n"
    "  ddp:   {}\n"
    "  zero2: { parallel: { zero: { stage: 2 } }, batch: { micro: 8 } }\n";

std::string refusal(const std::string& text, const std::string& variant = {},
                    const std::vector<std::string>& overrides = {}) {
  try {
    (void)parse_recipe(text, "r.yaml", overrides, variant);
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "none";
}

TEST_CASE("a variant's values stand in the place of the recipe's", "[recipe]") {
  const std::string text = test::small_recipe(kVariantsOfSmall);
  const LoadedRecipe plain = parse_recipe(text, "r.yaml");
  const LoadedRecipe zero2 = parse_recipe(text, "r.yaml", {}, "zero2");
  CHECK(plain.name == "r");
  CHECK(zero2.name == "r_zero2");
  CHECK(plain.recipe.batch.micro == 16);
  CHECK(zero2.recipe.batch.micro == 8);
  CHECK(zero2.recipe.batch.global == 64);
  CHECK(zero2.recipe.parallel.zero.stage == 2);
  CHECK(parse_recipe(text, "r.yaml", {}, "ddp").recipe == plain.recipe);
  CHECK(parse_recipe(text, "r.yaml", {"batch.micro=4"}, "zero2").recipe.batch.micro == 4);
  for (const Origin& origin : zero2.origins)
    if (origin.path == "batch.micro") CHECK(origin.origin == "r.yaml:8");
  const LoadedRecipe again = parse_recipe(resolved_yaml(zero2), "resolved.yaml");
  CHECK(again.recipe == zero2.recipe);
}

TEST_CASE("a variant is a file that need not be there", "[recipe]") {
  const test::TempDir folder;
  test::spit(folder / "small.yaml", test::small_recipe(kVariantsOfSmall));
  CHECK(load_recipe(folder / "small_zero2.yaml").recipe.parallel.zero.stage == 2);
  CHECK(load_recipe(folder / "small_zero2.yaml").file == (folder / "small.yaml").string());
  try {
    (void)load_recipe(folder / "small_zero4.yaml");
    FAIL("a variant that is not there was read");
  } catch (const RecipeError& error) {
    CHECK_THAT(error.what(),
               Catch::Contains("small.yaml:6:1: error: variants: no variant 'zero4'") &&
                   Catch::Contains("there are ddp, zero2"));
  }
  CHECK_THROWS_AS(load_recipe(folder / "other_zero2.yaml"), RecipeError);
  CHECK(variants_of(folder / "small.yaml") == std::vector<std::string>{"ddp", "zero2"});
  CHECK(variants_of(folder / "none.yaml").empty());
  // A file of that name goes first.
  test::spit(folder / "small_zero2.yaml", test::small_recipe());
  CHECK(load_recipe(folder / "small_zero2.yaml").recipe.batch.micro == 16);
}

/// "name: key=value; key=value" of what the recipe gives.
std::string given_values(const LoadedRecipe& loaded) {
  std::string text;
  for (const Origin& origin : loaded.origins) {
    if (origin.origin == "default") continue;
    text += (text.empty() ? ": " : "; ") + origin.path + "=" + origin.value;
  }
  return loaded.name + text;
}

TEST_CASE("each strategy of recipes/cnn and vit has the values that its own file had", "[recipe]") {
  ::unsetenv("DSTRAIN_DATA");
  std::istringstream lines(test::read_text("test/golden/recipe/variants.txt"));
  int names = 0;
  for (std::string line; std::getline(lines, line); ++names) {
    const std::string name = line.substr(0, line.find(':'));
    CAPTURE(name);
    const std::string folder = name.starts_with("vit-") ? "recipes/vit/" : "recipes/cnn/";
    CHECK(given_values(load_recipe(folder + name + ".yaml")) == line);
  }
  CHECK(names == 54);
}

TEST_CASE("mistakes of variants are named with their place", "[recipe]") {
  const auto with = [](const std::string& lines) {
    return test::small_recipe("variants:" + lines);
  };
  CHECK_THAT(refusal(with(" 3\n")),
             Catch::Contains("r.yaml:6:11: error: variants: expected a map"));
  CHECK_THAT(refusal(with("\n  a: 3\n")),
             Catch::Contains("r.yaml:7:6: error: variants.a: expected a map of what differs"));
  CHECK_THAT(refusal(with("\n  a_b: {}\n")),
             Catch::Contains("r.yaml:7:3: error: variants.a_b: a variant's name has a to z"));
  CHECK_THAT(refusal(with("\n  \"a\\e[m\": {}\n")), !Catch::Contains("\x1b"));
  std::string many = "\n";
  for (int i = 0; i < 33; ++i) many += "  v" + std::to_string(i) + ": {}\n";
  CHECK_THAT(refusal(with(many)), Catch::Contains("r.yaml:6:1: error: variants: 33 variants"));
  CHECK_THAT(refusal(with("\n  a: { variants: {} }\n")),
             Catch::Contains("r.yaml:7:8: error: variants.a.variants: a variant has no variants"));
  CHECK_THAT(refusal(with("\n  a: {}\n  b: {}\n"), "c"),
             Catch::Contains("variants: no variant 'c'") && Catch::Contains("there are a, b"));
  // Also of one that is not asked for.
  CHECK_THAT(refusal(with("\n  a: { batch: { mikro: 8 } }\n")),
             Catch::Contains("r.yaml:7:17: error: batch.mikro: no such key"));
}

}  // namespace
}  // namespace dstrain
