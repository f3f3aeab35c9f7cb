#include "engine/recipe/compute.h"

#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/load.h"
#include "test/recipe/golden.h"
#include "test/recipe/recipes.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using test::small_recipe;

/// What `given` becomes on a GPU of this capability; the error's text where it is refused.
std::string settled(const std::string& given, int major, int minor) {
  LoadedRecipe loaded = parse_recipe(given, "r.yaml");
  try {
    settle_compute(loaded, limits_of_capability(major, minor), "card");
  } catch (const Error& error) {
    return std::string(error.what()) + "; " + error.hint();
  }
  return std::string(spelling(loaded.recipe.precision.compute));
}

}  // namespace

TEST_CASE("precision.compute auto is what the GPUs compute fastest", "[recipe]") {
  CHECK(settled(small_recipe(), 7, 5) == "fp16");
  CHECK(settled(small_recipe(), 8, 0) == "bf16");
  CHECK(settled(small_recipe(), 12, 0) == "bf16");
  const std::string qwen =
      "model: { name: qwen2.5-3b }\ndata: { name: random, sequence: 128 }\n"
      "batch: { global: 4, micro: 1 }\nrun: { steps: 1, epochs: 0 }\noptimizer: { lr: 1e-3 }\n";
  CHECK(settled(qwen, 7, 5) == "fp16");
  LoadedRecipe cpu = parse_recipe(small_recipe(), "r.yaml");
  settle_compute(cpu, kCpuLimits, "CPU");
  CHECK(cpu.recipe.precision.compute == ComputeType::bf16);
  CHECK(test::origin_of(cpu, "precision.compute") == "auto");
}

TEST_CASE("a GPU that lacks a format refuses it and names the keys that help", "[recipe]") {
  CHECK(settled(small_recipe("precision: { compute: bf16 }\n"), 7, 5) ==
        "precision.compute: bf16: card has compute capability 7.5 and no products of bf16; use "
        "precision.compute: auto");
  CHECK(settled(small_recipe("precision: { compute: fp8 }\n"), 8, 6) ==
        "precision.compute: fp8: card has compute capability 8.6 and no products of FP8; use "
        "precision.compute: auto");
  CHECK(settled(small_recipe("precision: { states: bf16 }\n"), 7, 5) ==
        "precision.states: bf16: card has compute capability 7.5 and no products of bf16; use "
        "precision.states: fp32");
  CHECK(settled(small_recipe("precision: { compute: fp16 }\n"), 7, 5) == "fp16");
  CHECK(settled(small_recipe("precision: { compute: fp32 }\n"), 7, 5) == "fp32");
}

TEST_CASE("the chosen format stands in the resolved recipe, the origins of others stay",
          "[recipe]") {
  const test::TempDir folder;
  const std::filesystem::path file = folder.path() / "recipe.yaml";
  const std::string before = resolved_yaml(parse_recipe(small_recipe(), "r.yaml"));
  write_file_atomically(file, before);
  note_compute(file, ComputeType::fp16);
  const std::string after = read_file(file, 1 << 20);
  CHECK(after.size() == before.size());
  CHECK(load_recipe(file).recipe.precision.compute == ComputeType::fp16);
  CHECK(after.find("# r.yaml:1") != std::string::npos);
  note_compute(file, ComputeType::bf16);
  CHECK(read_file(file, 1 << 20) == after);
}

}  // namespace dstrain
