#include "engine/recipe/phases.h"

#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "test/recipe/recipes.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// The run has no length of its own.
LoadedRecipe two_phases(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"model.name=cnn-basic", "run.epochs=0"});
  return parse_recipe(test::small_recipe("optimizer: { lr: 0.1, warmup_steps: 4 }\n"
                                         "phases:\n"
                                         "  - { steps: 20, frozen: [\"stage1.*\"], lr: 0.5 }\n"
                                         "  - epochs: 3\n"
                                         "    warmup_steps: 0\n"
                                         "    image_size: 8\n"),
                      "r.yaml", overrides);
}

std::string error_of_override(const std::string& override) {
  try {
    (void)two_phases({override});
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a phase is the recipe with what it says of its own", "[recipe]") {
  const Recipe recipe = two_phases().recipe;
  REQUIRE(num_phases(recipe) == 2);
  const Recipe first = phase_recipe(recipe, 0), second = phase_recipe(recipe, 1);
  CHECK(first.model.frozen == std::vector<std::string>{"stage1.*"});
  CHECK(first.optimizer.lr == 0.5);
  CHECK(first.optimizer.warmup_steps == 4);
  CHECK(second.model.frozen.empty());
  CHECK(second.optimizer.lr == 0.1);
  CHECK(second.optimizer.warmup_steps == 0);
  CHECK(second.model.image_size == 8);
  CHECK(first.phases == recipe.phases);
  const Recipe alone = single_phase(recipe, 1);
  CHECK(alone.phases.empty());
  CHECK(alone.run.epochs == 3);
  CHECK(alone.run.steps == 0);
  CHECK(describe_phase(recipe, 0) == "phase 1 of 2: 20 steps, lr 0.5, frozen stage1.*");
  CHECK(describe_phase(recipe, 1) == "phase 2 of 2: 3 epochs, lr 0.1, images of 8 pixels");
  const Recipe whole = parse_recipe(test::small_recipe(), "r.yaml").recipe;
  CHECK(num_phases(whole) == 1);
  CHECK(phase_recipe(whole, 0) == whole);
  CHECK(single_phase(whole, 0) == whole);
}

TEST_CASE("phases in a resolved recipe read back as they were", "[recipe]") {
  const LoadedRecipe loaded = two_phases({"phases.0.lr=0.25"});
  const std::string text = resolved_yaml(loaded);
  CAPTURE(text);
  const LoadedRecipe again = parse_recipe(text, "resolved.yaml");
  CHECK(again.recipe == loaded.recipe);
  CHECK(again.warnings.size() == loaded.warnings.size());
  CHECK(text.find("--set") != std::string::npos);
}

TEST_CASE("option --set reaches a key of a phase, and takes phases away", "[recipe]") {
  const Recipe recipe = two_phases({"phases.1.warmup_steps=2", "phases.0.steps=5"}).recipe;
  CHECK(recipe.phases[0].steps == 5);
  CHECK(recipe.phases[1].warmup_steps == 2);
  CHECK(two_phases({"phases=[]", "run.steps=3"}).recipe.phases.empty());
  CHECK(error_of_override("phases.2.lr=1") ==
        "--set phases.2.lr=1: error: phases.2.lr: phases is a list of 2 items in the recipe\n"
        "  hint: give the number of a section in it, from 0, and a key of it");
  CHECK(error_of_override("phases.1=3").find("phases is a list of 2 items") != std::string::npos);
  CHECK(error_of_override("phases.first.lr=1").find("phases is a list of 2 items") !=
        std::string::npos);
  CHECK(error_of_override("phases.0.rate=1").find("no such key") != std::string::npos);
}

}  // namespace dstrain
