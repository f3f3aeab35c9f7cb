#include "engine/recipe/load.h"
#include "test/recipe/recipes.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::small_recipe;

std::string error_of_overrides(const std::vector<std::string>& overrides) {
  try {
    (void)parse_recipe(small_recipe(), "r.yaml", overrides);
  } catch (const RecipeError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("option --set replaces, adds and makes sections, the last one wins", "[recipe]") {
  const Recipe r = parse_recipe(small_recipe(), "r.yaml",
                                {"batch.global=32", "batch.global=128", "parallel.zero.stage=3",
                                 "optimizer.betas=[0.9, 0.98]", "data.augment=[random_crop]",
                                 "run.output=\"a: b\"", "model.weights="})
                       .recipe;
  CHECK(r.batch.global == 128);
  CHECK(r.batch.micro == 16);
  CHECK(r.parallel.zero.stage == 3);
  CHECK(r.optimizer.betas == std::vector{0.9, 0.98});
  CHECK(r.data.augment == std::vector{Augmentation::random_crop});
  CHECK(r.run.output == "a: b");
  CHECK(r.model.weights.empty());
}

TEST_CASE("option --set repairs a value that the file has wrong", "[recipe]") {
  CHECK(parse_recipe(small_recipe("precision: { compute: fp64 }\n"), "r.yaml",
                     {"precision.compute=bf16"})
            .recipe.precision.compute == ComputeType::bf16);
}

TEST_CASE("a mistake in --set names the option as it was typed", "[recipe]") {
  CHECK(error_of_overrides({"batch.global=x"}) ==
        "--set batch.global=x: error: batch.global: 'x' is not a whole number\n"
        "  hint: Samples of one optimizer step over all ranks.");
  CHECK(error_of_overrides({"batch.globl=8"}) ==
        "--set batch.globl=8: error: batch.globl: no such key\n"
        "  hint: did you mean 'global'? known here: concurrent, global, micro");
  CHECK(error_of_overrides({"batch"}) ==
        "--set batch: error: not of the form path.to.key=value\n"
        "  hint: for example --set optimizer.lr=3e-4");
  for (const char* wrong : {"=1", ".a=1", "a.=1", "a..b=1", "A=1", "a b=1"}) {
    CAPTURE(wrong);
    CHECK(error_of_overrides({wrong}).find("not of the form") != std::string::npos);
  }
  CHECK(error_of_overrides({"batch={global: 1}"}).find("the value is a map") != std::string::npos);
  CHECK(error_of_overrides({"batch.global=1\n2"}).find("not one line of UTF-8 text") !=
        std::string::npos);
  CHECK(error_of_overrides({"batch.global=[1"}).find("the [ that opens here is never closed") !=
        std::string::npos);
  CHECK(error_of_overrides({"batch.global=]"}).find("this is not YAML") != std::string::npos);
  CHECK(error_of_overrides({"batch.global=&a 1"}).find("an anchor (&a) is not read") !=
        std::string::npos);
  CHECK(error_of_overrides({"batch.global=*a"}).find("this is not YAML") != std::string::npos);
  CHECK(error_of_overrides({"batch.global.x=1"}).find("batch.global is not a section") !=
        std::string::npos);
}

}  // namespace dstrain
