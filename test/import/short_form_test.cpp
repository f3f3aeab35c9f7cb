#include "recipes/import/short_form.h"

#include "engine/base/error.h"
#include "recipes/schema/load.h"
#include "test/support/catch.h"

namespace dstrain::importing {
namespace {

std::string mistake(const std::vector<std::string>& words) {
  try {
    (void)read_short_form(words, recipes_below("recipes"));
    return "ok";
  } catch (const Error& error) {
    return std::string(error.what()) + "; " + error.hint();
  }
}

}  // namespace

TEST_CASE("five words are a recipe with strategy, batch and length", "[import]") {
  const ShortForm form =
      read_short_form({"vit-base", "fsdp_stage2", "8", "64", "10"}, recipes_below("recipes"));
  CHECK(form.recipe == "recipes/vit/vit-base_cifar100_zero2.yaml");
  CHECK(form.ranks == 8);
  const Recipe recipe = load_recipe(form.recipe, form.overrides).recipe;
  CHECK(recipe.parallel.zero.stage == 2);
  CHECK(recipe.batch == BatchConfig{512, 64});
  CHECK(recipe.run.epochs == 10);
}

TEST_CASE("a model's first word is enough", "[import]") {
  const auto recipes = recipes_below("recipes");
  CHECK(read_short_form({"mobilenet", "fsdp_stage2", "8", "64", "10"}, recipes).recipe ==
        "recipes/cnn/mobilenet-v2_food101_zero2.yaml");
  CHECK(read_short_form({"resnet", "ddp", "2", "4", "1"}, recipes).recipe ==
        "recipes/cnn/resnet50_food101_ddp.yaml");
  // A whole name is that model, not one whose name goes on.
  CHECK(read_short_form({"qwen2.5-3b", "zero3", "8", "4", "1"}, recipes).recipe ==
        "recipes/qwen/qwen2.5-3b_metamathqa.yaml");
}

TEST_CASE("every strategy fits every model whose recipes name it", "[import]") {
  const auto recipes = recipes_below("recipes");
  for (const char* model :
       {"vit", "vit-huge", "vit-huge_food101", "quickstart", "mobilenet", "vgg16"}) {
    for (const char* strategy :
         {"ddp", "zero1", "zero2", "zero3", "zeropp", "fsdp", "fsdp_stage3"}) {
      CAPTURE(model, strategy);
      const ShortForm form = read_short_form({model, strategy, "4", "2", "1"}, recipes);
      CHECK(form.recipe.string().find("_random") == std::string::npos);
      CHECK(load_recipe(form.recipe, form.overrides).recipe.batch == BatchConfig{8, 2});
    }
  }
}

TEST_CASE("words that are not known give the known ones, the nearest first", "[import]") {
  CHECK(mistake({"vi", "zero2", "8", "64", "10"}).find("is not known") != std::string::npos);
  CHECK(mistake({"vit-bose", "zero2", "8", "64", "10"}).find("did you mean vit-base?") !=
        std::string::npos);
  CHECK(mistake({"vit-base", "fsdp_stag2", "8", "64", "10"})
            .find("did you mean fsdp_stage2? known: ddp") != std::string::npos);
  CHECK(mistake({"vit-base", "zero2", "8", "x", "10"}).find("BATCH: 'x' is not a whole number") !=
        std::string::npos);
  CHECK(mistake({"vit-base", "zero2", "0", "1", "10"}).find("RANKS: '0'") != std::string::npos);
  CHECK(mistake({"vit-base", "zero2"}).find("2 words") != std::string::npos);
}

}  // namespace dstrain::importing
