#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/models/weights.h"
#include "engine/recipe/load.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/support/temp_dir.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

namespace dstrain {
namespace {

constexpr int kLoraSteps = 8;  ///< below an epoch: its last batch divides unevenly

Recipe lora_recipe(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"batch.global=48",
                                  "batch.micro=8",
                                  "run.steps=8",
                                  "run.epochs=0",
                                  "optimizer.warmup_steps=0",
                                  "optimizer.lr=0.01",
                                  "optimizer.schedule=constant",
                                  "model.layers=2",
                                  "lora.rank=4",
                                  "lora.dropout=0.2",
                                  "lora.also_train=[classifier]"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe("recipes/quickstart.yaml", all).recipe;
}

double take_step(Session& session) {
  session.enqueue_step();
  return session.executor().take_outcome().loss;
}

std::vector<double> lora_losses(int ranks, const std::vector<std::string>& overrides) {
  std::vector<double> found;
  test::with_sessions(
      ranks, [&](int) { return lora_recipe(overrides); },
      [&](int rank, Session& session) {
        session.seek(0);
        for (int step = 0; step < kLoraSteps; ++step) {
          const double loss = take_step(session);
          if (rank == 0) found.push_back(loss);
        }
      });
  return found;
}

}  // namespace

TEST_CASE("adapters with dropout train alike under every strategy", "[train][lora][parity]") {
  static const std::vector<double> alone = lora_losses(1, {"parallel.zero.stage=0"});
  static const std::vector<double> untrained =
      lora_losses(1, {"parallel.zero.stage=0", "optimizer.lr=1e-12"});
  REQUIRE(alone.front() == Approx(untrained.front()));
  REQUIRE(std::abs(alone.back() - untrained.back()) > 0.01);
  SECTION("ZeRO stages") {
    const int stage = GENERATE(0, 1, 2, 3);
    CAPTURE(stage);
    test::check_near(lora_losses(2, {fmt::format("parallel.zero.stage={}", stage)}), alone);
  }
  SECTION("recomputation draws the same masks") {
    test::check_near(lora_losses(1, {"parallel.zero.stage=0", "memory.recompute=blocks"}), alone);
  }
  SECTION("masks change with the seed of the run, not with the recipe's other numbers") {
    CHECK(lora_losses(1, {"parallel.zero.stage=0", "lora.dropout=0"}) != alone);
    CHECK(lora_losses(1, {"parallel.zero.stage=0"}) == alone);
  }
}

TEST_CASE("a base in 4 bits is the same on all layouts", "[train][lora][parity]") {
  const std::string family = GENERATE("qwen2.5-3b", "bloom-560m", "gpt2");
  CAPTURE(family);
  // The update follows the gradient: AdamW's first ones follow its sign, and so rounding.
  std::vector<std::string> base = {"lora.rank=4",          "lora.targets=[all-linear]",
                                   "lora.base=nf4",        "model.width=128",
                                   "optimizer.name=sgd",   "optimizer.lr=1",
                                   "parallel.zero.stage=0"};
  if (!family.starts_with("bloom")) base.emplace_back("model.mlp_width=128");
  const auto losses = [&](int ranks, const std::vector<std::string>& more) {
    return test::small_run(family, ranks, test::joined(base, more));
  };
  static std::map<std::string, test::Trace> known;
  if (!known.contains(family)) {
    known[family] = losses(1, {});
    // Other weights than in the compute type, and it learns.
    REQUIRE(losses(1, {"lora.base=compute"}).losses.front() != known[family].losses.front());
    REQUIRE(losses(1, {"optimizer.lr=1e-12"}).losses.back() != known[family].losses.back());
  }
  const test::Trace& alone = known[family];
  const auto [ranks, more] = GENERATE(
      table<int, std::vector<std::string>>({{3, {"parallel.zero.stage=3"}},
                                            {2, {"parallel.zero.stage=2"}},
                                            {2, {"parallel.tensor=2"}},
                                            {4, {"parallel.tensor=2", "parallel.zero.stage=3"}},
                                            {2, {"parallel.pipeline=2"}},
                                            {2, {"parallel.sequence=2"}},
                                            {1, {"memory.recompute=blocks", "memory.tiles=5"}},
                                            {1, {"memory.offload.parameters=pageable"}}}));
  CAPTURE(ranks, more);
  const bool cut = more.front() == "parallel.tensor=2" || more.front() == "parallel.zero.stage=3";
  if (!family.starts_with("qwen") && !cut) return;  // what differs are its parts
  test::check_near(losses(ranks, more), alone);
}

TEST_CASE("codes of a base in 4 bits are not coded again on their way", "[train][lora]") {
  const std::vector<std::string> base = {"lora.rank=4", "lora.targets=[all-linear]",
                                         "lora.base=nf4", "model.width=128",
                                         "parallel.zero.stage=3"};
  const auto losses = [&](const std::vector<std::string>& more) {
    return test::small_run("qwen2.5-3b", 2, test::joined(base, more)).losses;
  };
  // Only embedding, head and adapters travel in 8 bits.
  const std::vector<double> whole = losses({}), coded = losses({"precision.gather=int8"});
  CHECK(coded != whole);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(coded[i] == Approx(whole[i]).epsilon(0.02));
}

TEST_CASE("codes of 4 bits are no numbers that could be not finite", "[train][lora]") {
  const Recipe recipe = test::small_recipe(
      "qwen2.5-3b", {"lora.rank=4", "lora.base=nf4", "model.width=128", "precision.compute=bf16"});
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        session.enqueue_step();
        StepOutcome outcome = session.executor().take_outcome();
        REQUIRE_FALSE(outcome.skipped);
        int trained = 0;
        while (!session.states().trainable(trained)) ++trained;
        session.states().own_gradient(trained)[0] = NAN;
        outcome.gradient_norm = NAN;
        CHECK_THAT(session.explain_non_finite(outcome).text,
                   Catch::Contains("non-finite gradient") && Catch::Contains("lora_"));
      });
}

TEST_CASE("a checkpoint of adapters holds these alone and goes on exactly", "[train][lora]") {
  const test::TempDir folder;
  const Recipe recipe = lora_recipe({"parallel.zero.stage=0"});
  std::vector<double> whole, resumed;
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        for (int step = 0; step < 5; ++step) whole.push_back(take_step(session));
        const auto saver = make_saver(make_memory_store(), {.root = folder.path(), .attempt = "1"});
        CheckpointState state = test::test_state(5, 1);
        state.base = base_reference(recipe);
        saver->start(state, session.states().snapshot());
        REQUIRE(saver->wait().value().ok);
        for (int step = 5; step < kLoraSteps; ++step) whole.push_back(take_step(session));
      });
  const auto reader = CheckpointReader::open(folder / "step-00000005", /*verify=*/true);
  CHECK(reader->state().base == "random weights of seed 42");
  for (const Piece& tensor : reader->tensors()) {
    CAPTURE(tensor.name);
    CHECK((tensor.name.find("lora_") != std::string::npos ||
           tensor.name.find("classifier.") != std::string::npos));
  }
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.states().restore(*reader);
        session.executor().set_control({.applied_steps = 5});
        session.seek(5);
        for (int step = 5; step < kLoraSteps; ++step) resumed.push_back(take_step(session));
      });
  CHECK(resumed == std::vector<double>(whole.begin() + 5, whole.end()));
}

TEST_CASE("frozen weights are named by their content", "[train][lora]") {
  const test::TempDir folder;
  const auto folder_with = [&](const std::string& name, float value, std::size_t size) {
    std::filesystem::create_directories(folder / name);
    const std::vector<float> values(size, value);
    write_safetensors(folder.path() / name / "model.safetensors",
                      {{.name = "w",
                        .shape = {static_cast<std::int64_t>(size)},
                        .dtype = DType::f32,
                        .values = values}},
                      {});
    Recipe recipe;
    recipe.lora.rank = 1;
    recipe.model.weights = (folder / name).string();
    return recipe;
  };
  constexpr std::size_t kTwoParts = 20'000'000;  // 80 MB
  const std::string first = base_reference(folder_with("first", 1, kTwoParts));
  CHECK(first.starts_with("xxh3-128 of its files: "));
  CHECK(base_reference(folder_with("again", 1, kTwoParts)) == first);
  CHECK(base_reference(folder_with("other", 2, kTwoParts)) != first);
  CHECK(base_reference(folder_with("small", 1, 4)) != first);

  Recipe random;
  CHECK(base_reference(random).empty());
  random.model.frozen = {"vit.*"};
  CHECK(base_reference(random) == "random weights of seed 42");
  random.run.seed = 7;
  CHECK(base_reference(random) == "random weights of seed 7");

  CHECK_NOTHROW(check_base("step-00000001", first, first));
  CHECK_THAT(
      test::checkpoint_error([&] { check_base("step-00000001", first, "other"); }),
      Catch::Contains("step-00000001") && Catch::Contains(first) && Catch::Contains("'other'"));
  CHECK_THAT(test::checkpoint_error([&] { check_base("step-00000001", "", "other"); }),
             Catch::Contains("none"));
}

}  // namespace dstrain
