#include "launcher/job/recipe_files.h"
#include "test/support/catch.h"

namespace dstrain::launcher {

TEST_CASE("a lost host without a spare has its price in one line", "[launcher][price][scale]") {
  Recipe recipe;
  recipe.batch.global = 4096;
  recipe.batch.micro = 4;
  // 127 hosts of 8 in place of 128: one micro-batch of a rank becomes two, half of it fillers.
  CHECK(
      price_of_ranks(recipe, 1024, 1016) ==
      "1016 ranks in place of 1024: 2 micro-batches of 4 a rank and step where it was 1, so a step "
      "takes about 2.00 times as long; 4032 of its 8128 places are fillers: a smaller batch.micro, "
      "or a spare host, would cost less");
  CHECK(
      price_of_ranks(recipe, 1024, 512) ==
      "512 ranks in place of 1024: 2 micro-batches of 4 a rank and step where it was 1, so a step "
      "takes about 2.00 times as long");
  recipe.batch.micro = 1;
  CHECK(
      price_of_ranks(recipe, 16, 15) ==
      "15 ranks in place of 16: 274 micro-batches of 1 a rank and step where it was 256, so a step "
      "takes about 1.07 times as long");
  recipe.batch.global = 9;
  recipe.batch.micro = 4;
  CHECK(price_of_ranks(recipe, 4, 3) ==
        "3 ranks in place of 4: still 1 micro-batch of 4 a rank and step");
}

}  // namespace dstrain::launcher
