#include <cstdlib>

#include "engine/recipe/load.h"
#include "engine/recipe/render.h"
#include "test/recipe/golden.h"
#include "test/recipe/recipes.h"

namespace dstrain {
namespace {

using test::small_recipe;

void check_round_trip(const LoadedRecipe& loaded) {
  const std::string text = resolved_yaml(loaded);
  CAPTURE(text);
  const LoadedRecipe again = parse_recipe(text, "resolved.yaml");
  CHECK(again.recipe == loaded.recipe);
  CHECK(again.warnings.size() == loaded.warnings.size());
}

}  // namespace

TEST_CASE("a resolved recipe reads back as the same recipe, without a new warning", "[recipe]") {
  check_round_trip(parse_recipe(small_recipe(), "r.yaml"));
  check_round_trip(parse_recipe(small_recipe("precision: { compute: fp16 }\n"), "r.yaml"));
  check_round_trip(parse_recipe(
      small_recipe("optimizer: { name: sgd, lr: 1e-300, momentum: 0.1 }\n"), "r.yaml"));
  check_round_trip(
      parse_recipe(small_recipe("optimizer: { lr: 0.1, momentum: 0.25 }\n"), "r.yaml"));
  check_round_trip(
      parse_recipe(small_recipe("parallel: { zero: { stage: 3, prefetch: 0 } }\n"), "r.yaml"));
  check_round_trip(parse_recipe(
      small_recipe(), "r.yaml",
      {"data.name=random", "run.epochs=0", "run.steps=7", "run.seed=9223372036854775"}));
}

TEST_CASE("text that looks like something else survives the round trip", "[recipe]") {
  ::setenv("DSTRAIN_TEST_DOLLAR", "${HOME} $$ \"quoted\" \\ # no comment", 1);
  for (const char* value :
       {"'${DSTRAIN_TEST_DOLLAR}'", "'a: b # c'", "\"tab \\x41\"", "'null'", "'~'", "'$$${HOME}'",
        "'true'", "'-'", "'.5'", "'caf\xC3\xA9'", "'it''s'", "'{a}'", "'*a'", "' x '", "5"}) {
    CAPTURE(value);
    check_round_trip(parse_recipe(small_recipe(), "r.yaml", {std::string("run.output=") + value}));
  }
}

TEST_CASE("the resolved quickstart recipe is this text", "[recipe][golden]") {
  test::compare_with_file(resolved_yaml(load_recipe("recipes/quickstart.yaml", {"batch.micro=32"})),
                          "test/golden/recipe/quickstart_resolved.yaml");
}

TEST_CASE("the file name in the resolved recipe cannot break out of its comment", "[recipe]") {
  check_round_trip(parse_recipe(small_recipe(), "r\nbatch: 1\n\xFF.yaml"));
}

TEST_CASE("recipe show --json holds typed values and origins", "[recipe]") {
  const std::string json =
      recipe_json(parse_recipe(small_recipe(), "r.yaml", {"optimizer.betas=[0.5, 0.75]"}));
  CAPTURE(json);
  for (const char* part :
       {"\"global\": 64", "\"lr\": 0.001", "\"compute\": \"auto\"", "\"asynchronous\": true",
        "\"optimizer.betas\": \"--set\"", "\"batch.global\": \"r.yaml:3\""}) {
    CAPTURE(part);
    CHECK(json.find(part) != std::string::npos);
  }
}

}  // namespace dstrain
