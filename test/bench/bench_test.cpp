#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "engine/base/error.h"
#include "engine/bench/bench_log.h"
#include "engine/bench/variants.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain::bench {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::spit;
using test::TempDir;

BenchPlan some_plan(const std::vector<int>& ranks = {1, 2}, bool weak = false) {
  return {.recipes = {"recipes/quickstart.yaml"},
          .cases = variant_cases(1, ranks, {named_variant("ddp"), named_variant("zero2")}, weak),
          .repeat = 2,
          .overrides = {}};
}

template <class Work>
std::string usage_error(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return std::string(error.what()) + " | " + error.hint();
  }
  FAIL("no error");
  return {};
}

TEST_CASE("a variant is a base with additions, or what its text says", "[bench]") {
  CHECK(named_variant("recipe").overrides.empty());
  CHECK(named_variant("zero2+recompute").overrides ==
        std::vector<std::string>{"parallel.zero.stage=2", "memory.recompute=blocks"});
  CHECK(named_variant("zero3+offload+pageable").overrides.back() ==
        "memory.offload.optimizer=pageable");
  for (const char* name : {"", "zero9", "zero2+", "+recompute", "recompute", "zero2+zero3"}) {
    CAPTURE(name);
    CHECK(usage_error([&] { (void)named_variant(name); }).find("known are recipe, ddp") !=
          std::string::npos);
  }
  const Variant own = own_variant("wide=model.width=256,data.augment=[flip,random_crop]");
  CHECK(own.name == "wide");
  CHECK(own.overrides ==
        std::vector<std::string>{"model.width=256", "data.augment=[flip,random_crop]"});
  for (const char* text :
       {"", "wide", "wide=", "wide=model", "=a=b", "a/b=c=d", "a=b=c,", "a==c"}) {
    CAPTURE(text);
    CHECK_FALSE(usage_error([&] { (void)own_variant(text); }).empty());
  }
}

TEST_CASE("variants take turns, forth and back", "[bench]") {
  BenchPlan plan = some_plan();
  plan.repeat = 3;
  std::vector<std::string> names;
  for (const Turn& turn : turns(plan)) names.push_back(run_name(plan, turn));
  CHECK(names ==
        std::vector<std::string>{
            "quickstart-ddp-1-ranks-1", "quickstart-zero2-1-ranks-1", "quickstart-zero2-1-ranks-2",
            "quickstart-ddp-1-ranks-2", "quickstart-ddp-1-ranks-3", "quickstart-zero2-1-ranks-3",
            "quickstart-ddp-2-ranks-1", "quickstart-zero2-2-ranks-1", "quickstart-zero2-2-ranks-2",
            "quickstart-ddp-2-ranks-2", "quickstart-ddp-2-ranks-3", "quickstart-zero2-2-ranks-3"});
  plan.recipes.emplace_back("other/quickstart.yaml");
  CHECK(recipe_name(plan, 1) == "quickstart.2");
}

TEST_CASE("a run gets its length, its variant and the overrides of all, in this order", "[bench]") {
  BenchPlan plan = some_plan();
  plan.overrides = {"model.layers=1"};
  const auto arguments = [&](int ranks) {
    const std::size_t index = ranks == 1 ? 1 : 3;
    return fmt::format("{}", fmt::join(launch_arguments(plan, {.index = index}, "out"), " "));
  };
  CHECK(arguments(2) ==
        "launch recipes/quickstart.yaml --ranks 2 --run-name quickstart-zero2-2-ranks-1 "
        "--set run.checkpoint.every=never --set run.epochs=0 --set run.steps=80 "
        "--set run.evaluate=80 --set parallel.zero.stage=2 --set model.layers=1 "
        "--set run.output=out");
  plan.steps = 0;  // the recipe's own length
  CHECK(arguments(2).find("run.steps") == std::string::npos);
  plan.cases = some_plan({1, 2}, true).cases;
  CHECK(arguments(1).find("batch.global=64 ") != std::string::npos);
  CHECK(arguments(2).find("batch.global=128 ") != std::string::npos);
  plan.cases = some_plan({3, 2}, true).cases;
  CHECK(usage_error([&] { (void)arguments(2); }).find("64") != std::string::npos);
  plan.overrides = {"run.evaluate=never"};
  plan.steps = 60;
  plan.cases = some_plan().cases;
  CHECK(arguments(1).find("run.evaluate=80") == std::string::npos);
}

TEST_CASE("a variant of a recipe file has a fingerprint of its own", "[bench]") {
  BenchPlan plan = some_plan();
  plan.recipes = {"recipes/cnn/resnet50_random_zero2.yaml"};
  const std::string zero2 = turn_fingerprint(plan, {.index = 0});
  plan.overrides = {"model.classes=7"};
  CHECK(turn_fingerprint(plan, {.index = 0}) != zero2);
}

TEST_CASE("a bench goes on where it ended, where that is asked for", "[bench]") {
  const TempDir dir;
  const BenchPlan plan = some_plan();
  {
    BenchLog log(dir / "b", plan, false);
    CHECK(log.records().empty());
    log.add({.run = "quickstart-ddp-1-ranks-1", .seconds = 1.5});
    log.add({.run = "quickstart-zero2-1-ranks-1", .exit_code = 64, .reason = "no"});
  }
  CHECK(usage_error([&] { BenchLog(dir / "b", plan, false); }).find("--resume") !=
        std::string::npos);
  // A line that was cut off is made again.
  const std::string text = slurp(dir / "b" / "bench.jsonl");
  spit(dir / "b" / "bench.jsonl", text + R"({"run":"quickstart-zero2-1-ra)");
  {
    BenchLog log(dir / "b", plan, true);
    REQUIRE(log.records().size() == 2);
    CHECK(log.records()[0].seconds == 1.5);
    CHECK(log.find("quickstart-zero2-1-ranks-1")->reason == "no");
    CHECK(log.find("quickstart-zero2-1-ranks-1")->exit_code == 64);
    CHECK_FALSE(log.find("quickstart-zero2-1-ranks-2"));
    log.add({.run = "quickstart-zero2-1-ranks-2"});
  }
  CHECK(BenchLog(dir / "b", plan, true).records().size() == 3);
  spit(dir / "file", "x");
  CHECK(usage_error([&] {
          BenchLog(dir / "file", plan, false);
        }).find("cannot make the folder " + (dir / "file" / "runs").string() + ": ") !=
        std::string::npos);
}

}  // namespace
}  // namespace dstrain::bench
