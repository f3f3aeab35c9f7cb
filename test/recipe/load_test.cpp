#include "engine/recipe/load.h"

#include <cstdlib>
#include <fstream>

#include "test/recipe/recipes.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using test::error_of;
using test::origin_of;
using test::small_recipe;

}  // namespace

TEST_CASE("every kind of value arrives in its field", "[recipe]") {
  const LoadedRecipe loaded = parse_recipe(
      "model: { name: google/vit-base-patch16-224, weights: some/folder }\n"
      "data: { name: cifar10, path: x y, augment: [horizontal_flip, random_crop] }\n"
      "batch: { global: 512, micro: 64 }\n"
      "optimizer: { name: adamw, lr: 5.0e-5, betas: [0.8, 0.95], schedule: linear }\n"
      "precision: { compute: fp16, non_finite: stop, loss_scale: { initial: 1024 } }\n"
      "parallel: { zero: { stage: 3, shard: 2 }, backend: gloo }\n"
      "memory: { recompute: blocks }\n"
      "run: { steps: 60, seed: 9007199254740993, evaluate: 20, checkpoint: { every: never, "
      "asynchronous: false } }\n",
      "folder/name.yaml");
  const Recipe& r = loaded.recipe;
  CHECK(loaded.name == "name");
  CHECK(r.model.name == "google/vit-base-patch16-224");
  CHECK(r.model.weights == "some/folder");
  CHECK(r.data.name == DatasetName::cifar10);
  CHECK(r.data.path == "x y");
  CHECK(r.data.augment == std::vector{Augmentation::horizontal_flip, Augmentation::random_crop});
  CHECK(r.batch.global == 512);
  CHECK(r.optimizer.lr == 5.0e-5);
  CHECK(r.optimizer.betas == std::vector{0.8, 0.95});
  CHECK(r.optimizer.schedule == Schedule::linear);
  CHECK(r.precision.compute == ComputeType::fp16);
  CHECK(r.precision.non_finite == NonFinite::stop);
  CHECK(r.precision.loss_scale.initial == 1024.0);
  CHECK(r.parallel.zero.stage == 3);
  CHECK(r.parallel.backend == Backend::gloo);
  CHECK(r.memory.recompute == Recompute::blocks);
  CHECK(r.run.seed == 9007199254740993);
  CHECK(r.run.evaluate == Interval{.kind = Interval::Kind::steps, .steps = 20});
  CHECK_FALSE(r.run.checkpoint.asynchronous);
  CHECK(loaded.warnings.empty());
}

TEST_CASE("a file with byte order mark and CRLF reads like one without", "[recipe]") {
  std::string text = small_recipe();
  const Recipe plain = parse_recipe(text, "r.yaml").recipe;
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) {
    text.insert(at, "\r");
  }
  CHECK(parse_recipe("\xEF\xBB\xBF" + text, "r.yaml").recipe == plain);
}

TEST_CASE("an origin names the line, --set, the default and the variables", "[recipe]") {
  ::setenv("DSTRAIN_TEST_FOLDER", "/data", 1);
  const LoadedRecipe loaded = parse_recipe(
      "model: { name: vit-tiny }\n"
      "data: { name: images, path: \"${DSTRAIN_TEST_FOLDER}/x\" }\n"
      "batch:\n  global: 64\n  micro: 16\n"
      "optimizer: { lr: 1e-3 }\nrun: { epochs: 1 }\n",
      "r.yaml", {"batch.global=32"});
  CHECK(loaded.recipe.data.path == "/data/x");
  CHECK(origin_of(loaded, "data.path") == "r.yaml:2 with ${DSTRAIN_TEST_FOLDER}");
  CHECK(origin_of(loaded, "batch.global") == "--set");
  CHECK(origin_of(loaded, "batch.micro") == "r.yaml:5");
  CHECK(origin_of(loaded, "run.checkpoint.keep") == "default");
}

TEST_CASE("errors of the schema and of the rules are reported in one run, in file order",
          "[recipe]") {
  const std::string text = error_of(
      "run: { epochs: 1, steps: 2 }\n"
      "data: { name: cifar10 }\n"
      "model: { nam: vit-tiny }\n"
      "batch: { global: 8, micro: 16 }\n"
      "optimizer: { lr: -1 }\n");
  std::size_t at = 0;
  for (const char* part :
       {"r.yaml:1:26: error: run.steps: the length is given twice",
        "r.yaml:2:1: error: data.path: missing", "r.yaml:3:1: error: model.name: missing",
        "r.yaml:3:10: error: model.nam: no such key", "r.yaml:4:28: error: batch.micro: 16 is more",
        "r.yaml:5:18: error: optimizer.lr: -1 is out of range: above 0"}) {
    CAPTURE(part, text);
    at = text.find(part, at);
    REQUIRE(at != std::string::npos);
  }
}

TEST_CASE("two micro-batches at once are refused beside what has its own order", "[recipe]") {
  const auto text = [](const std::string& model, const std::string& more) {
    return error_of("model: { name: " + model + " }\ndata: { name: random, samples: 64 }\n" +
                    "batch: { global: 8, micro: 2, concurrent: 2 }\noptimizer: { lr: 1 }\n" +
                    "run: { epochs: 1 }\n" + more);
  };
  CHECK(text("vit-tiny", "parallel: { pipeline: 2 }\n")
            .find("r.yaml:3:43: error: batch.concurrent: 2 micro-batches at once do not go with "
                  "parallel.pipeline above 1") != std::string::npos);
  CHECK(text("qwen2.5-3b-moe", "").find("do not go with a mixture of experts") !=
        std::string::npos);
  CHECK(text("vit-tiny", "memory: { recompute: blocks, offload: { activations: pinned } }\n")
            .find("do not go with memory.offload.activations") != std::string::npos);
}

TEST_CASE("a rule is silent about a field that was refused", "[recipe]") {
  const std::string text = error_of(
      "model: { name: vit-tiny }\ndata: { name: digits }\nbatch: { global: x, micro: 16 }\n"
      "optimizer: { lr: 1 }\nrun: { epochs: 1 }\n");
  CHECK(text.find("batch.global: 'x' is not a whole number") != std::string::npos);
  CHECK(text.find("batch.micro") == std::string::npos);
}

TEST_CASE("a recipe error carries every diagnostic and the exit code for usage", "[recipe]") {
  try {
    (void)parse_recipe(small_recipe("memory: 1\nrum: 2\n"), "r.yaml");
    FAIL("accepted");
  } catch (const RecipeError& error) {
    CHECK(exit_code(error.kind()) == 64);
    REQUIRE(error.diagnostics().size() == 2);
    CHECK(error.diagnostics()[0].path == "memory");
    CHECK(error.diagnostics()[0].line == 6);
    CHECK(error.diagnostics()[0].column == 9);
  }
}

TEST_CASE("what is no recipe file is named, and never waited for", "[recipe]") {
  const test::TempDir folder;
  const auto error = [](const std::filesystem::path& path) -> std::string {
    try {
      (void)load_recipe(path);
    } catch (const RecipeError& failure) {
      return failure.what();
    }
    return "accepted";
  };
  CHECK(error(folder / "none.yaml").find("none.yaml: error: there is no such file") !=
        std::string::npos);
  CHECK(error(folder.path()).find("it is a directory, not a file") != std::string::npos);
  CHECK(error("/dev/zero").find("it is a device, not a file") != std::string::npos);
  std::ofstream(folder / "big.yaml") << std::string((256 << 10) + 1, '#');
  CHECK(error(folder / "big.yaml").find("262145 bytes, more than the limit of 262144") !=
        std::string::npos);
}

TEST_CASE("a setting without effect is a warning, a default without effect is none", "[recipe]") {
  const LoadedRecipe silent = parse_recipe(small_recipe(), "r.yaml");
  CHECK(silent.warnings.empty());
  const LoadedRecipe loaded =
      parse_recipe(small_recipe("optimizer: { lr: 1, momentum: 0.9 }\n"), "r.yaml");
  REQUIRE(loaded.warnings.size() == 1);
  CHECK(format(loaded.warnings[0]) ==
        "r.yaml:5:31: warning: optimizer.momentum: has no effect: optimizer.name adamw has none, "
        "only sgd, muon, rmsprop\n"
        "  hint: remove it");
}

TEST_CASE("codes and second shards are refused where nothing is gathered or reduced so",
          "[recipe]") {
  const auto refused = [](const std::vector<std::string>& overrides, const std::string& key) {
    try {
      (void)load_recipe("recipes/quickstart.yaml", overrides);
    } catch (const RecipeError& error) {
      return std::string(error.what()).find(key + ": ") != std::string::npos;
    }
    return false;
  };
  CHECK(refused({"precision.gather=int8"}, "precision.gather"));
  CHECK_FALSE(
      refused({"precision.gather=int8", "parallel.zero.stage=3", "precision.compute=fp16"}, ""));
  CHECK(refused({"precision.reduce=int4", "parallel.zero.stage=1"}, "precision.reduce"));
  CHECK(refused({"parallel.zero.second_shard=2"}, "parallel.zero.second_shard"));
  for (const char* key : {"precision.gather=fp8", "parallel.zero.second_shard=2"}) {
    CHECK_FALSE(refused({key, "parallel.zero.stage=3", "memory.offload.parameters=pinned"}, ""));
    CHECK_FALSE(refused({key, "parallel.zero.stage=3", "memory.offload.optimizer=pinned"}, ""));
  }
  CHECK_FALSE(refused({"precision.reduce=int4"}, ""));
}

TEST_CASE("gradients in bf16 need a computation and sums in bf16", "[recipe]") {
  const auto refused = [](std::vector<std::string> overrides, const std::string& text,
                          const std::string& path = "recipes/quickstart.yaml") {
    overrides.emplace_back("precision.gradients=bf16");
    try {
      (void)load_recipe(path, overrides);
    } catch (const RecipeError& error) {
      return std::string(error.what()).find("precision.gradients: " + text) != std::string::npos;
    }
    return false;
  };
  const std::string bf16 = "precision.compute=bf16", sums = "precision.reduce=bf16";
  CHECK(refused({"precision.compute=fp16", sums}, "bf16 gradients need a bf16 computation"));
  CHECK(refused({bf16}, "bf16 gradients are summed over ranks in bf16"));
  CHECK(refused({bf16, sums}, "bf16, but model.name", "recipes/cnn/cnn-basic_digits.yaml"));
  CHECK_NOTHROW(load_recipe("recipes/quickstart.yaml", {bf16, sums, "precision.gradients=bf16"}));
}

TEST_CASE("an optimizer's own defaults stand where the recipe is silent", "[recipe]") {
  const auto betas = [](const std::string& optimizer) {
    return parse_recipe(small_recipe("optimizer: { " + optimizer + " }\n"), "r.yaml")
        .recipe.optimizer.betas;
  };
  CHECK(betas("lr: 1") == std::vector<double>{0.9, 0.999});
  CHECK(betas("name: lion, lr: 1") == std::vector<double>{0.9, 0.99});
  CHECK(betas("name: lion, lr: 1, betas: [0.95, 0.98]") == std::vector<double>{0.95, 0.98});
  const OptimizerConfig muon =
      parse_recipe(small_recipe("optimizer: { name: muon, lr: 1 }\n"), "r.yaml").recipe.optimizer;
  CHECK(muon.momentum == 0.95);
  CHECK(muon.weight_decay == 0.1);
  CHECK(muon.betas == std::vector<double>{0.9, 0.999});
}

}  // namespace dstrain
