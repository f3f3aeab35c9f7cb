#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/recipe/load.h"
#include "engine/store/store.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

namespace dstrain {
namespace {

constexpr int kPairSteps = 4;
constexpr int kTestPairs = 7;

/// Pairs of texts in a folder of its own, with the tokenizer of bytes and the cache.
class PairFiles {
 public:
  PairFiles() {
    write("train", 26);
    write("test", kTestPairs);
    test::write_text(folder_ / "tokenizer.json", test::byte_tokenizer({"<|endoftext|>"}));
  }
  [[nodiscard]] std::filesystem::path path() const { return folder_.path(); }
  /// Numbers of reference files.
  [[nodiscard]] int references() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache"))
      count += entry.path().filename().string().starts_with("reference-") ? 1 : 0;
    return count;
  }

 private:
  void write(const std::string& split, int pairs) {
    std::string lines;
    for (int i = 0; i < pairs; ++i)
      lines += fmt::format(
          "{{\"prompt\": \"{} + {} =\", \"chosen\": \" {}\", \"rejected\": \" {}!{}\"}}\n", i,
          2 * i, 3 * i, i, std::string(static_cast<std::size_t>(i % 5), 'x'));
    test::write_text(folder_ / (split + ".jsonl"), lines);
  }
  test::TempDir folder_;
};

Recipe pair_recipe(const PairFiles& files, const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"data.name=chat",
                                  "data.path=" + files.path().string(),
                                  "data.tokenizer=" + files.path().string(),
                                  "data.cache=" + (files.path() / "cache").string(),
                                  "data.sequence=48",
                                  "model.vocab_size=260",
                                  "batch.global=8",
                                  "batch.micro=2",
                                  "run.steps=4",
                                  "run.evaluate=4",
                                  "optimizer.lr=0.01",
                                  "preference.loss=dpo"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  std::vector<std::string> base = {"run.epochs=0",
                                   "precision.compute=fp32",
                                   "optimizer.clip_norm=0",
                                   "model.name=llama-3.1-8b",
                                   "model.width=32",
                                   "model.layers=4",
                                   "model.heads=4",
                                   "model.kv_heads=2",
                                   "model.head_dim=16",
                                   "model.mlp_width=64",
                                   "optimizer.no_decay=[\"*norm*\"]"};
  base.insert(base.end(), all.begin(), all.end());
  return load_recipe("recipes/qwen/qwen2.5-3b_random.yaml", base).recipe;
}

struct PairRun {
  std::vector<double> losses, accuracies, margins, logps;
  EvaluationTotals evaluation;
};

PairRun run_pairs(const PairFiles& files, int ranks, const std::vector<std::string>& overrides) {
  const Recipe recipe = pair_recipe(files, overrides);
  PairRun run;
  test::with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        PairRun own;
        for (int step = 0; step < kPairSteps; ++step) {
          session.enqueue_step();
          const StepOutcome outcome = session.executor().take_outcome();
          own.losses.push_back(outcome.loss);
          own.accuracies.push_back(outcome.top1);
          own.margins.push_back(outcome.pairs.value().margin());
          own.logps.push_back(outcome.pairs->logps_chosen);
          if (session.samples_of_step(step) != static_cast<std::int64_t>(outcome.targets))
            FAIL("a mean over something else than pairs");
        }
        own.evaluation = session.evaluate();
        if (rank == 0) run = own;
      });
  return run;
}

/// Margins may be near 0, where their own size says nothing.
void check_near(const PairRun& found, const PairRun& expected) {
  test::check_near(found.losses, expected.losses);
  test::check_near(found.logps, expected.logps);
  CHECK(found.accuracies == expected.accuracies);
  for (std::size_t i = 0; i < expected.margins.size(); ++i)
    CHECK(found.margins[i] == Approx(expected.margins[i]).margin(1e-4));
  CHECK(found.evaluation.loss == Approx(expected.evaluation.loss).epsilon(1e-5));
  CHECK(found.evaluation.targets == kTestPairs);
}

}  // namespace

TEST_CASE("losses of pairs are those of one rank under every strategy", "[train][parity]") {
  const PairFiles files;
  const std::string loss = GENERATE("dpo", "ipo", "simpo", "orpo");
  const std::vector<std::string> kind = {"preference.loss=" + loss};
  const auto with = [&](int ranks, const std::vector<std::string>& more) {
    return run_pairs(files, ranks, test::joined(kind, more));
  };
  const PairRun alone = with(1, {});
  CAPTURE(loss, alone.losses, alone.margins);
  if (loss == "dpo") {
    // Weights that have not moved beside themselves.
    REQUIRE(alone.margins.front() == 0);
    REQUIRE(alone.accuracies.front() == 0);
    REQUIRE(alone.losses.front() == Approx(std::log(2)).epsilon(1e-7));
  }
  if (loss == "ipo") REQUIRE(alone.losses.front() == Approx(25));
  REQUIRE(alone.losses.back() < alone.losses.front());
  REQUIRE(std::isfinite(alone.evaluation.loss));

  check_near(with(1, {"batch.micro=4"}), alone);
  check_near(with(1, {"batch.micro=3", "memory.recompute=blocks"}), alone);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const PairRun two = with(2, {fmt::format("parallel.zero.stage={}", stage)});
    check_near(two, alone);
    if (loss == "dpo") REQUIRE(two.margins.front() == 0);
  }
  check_near(with(2, {"parallel.pipeline=2"}), alone);
  check_near(with(3, {"parallel.zero.stage=3", "batch.micro=1"}), alone);
}

TEST_CASE("adapters learn pairs, from the reference of their base", "[train][lora]") {
  const PairFiles files;
  const std::vector<std::string> lora = {"lora.rank=4", "lora.targets=[all-linear]"};
  const PairRun alone = run_pairs(files, 1, lora);
  REQUIRE(alone.margins.front() == 0);
  REQUIRE(alone.margins.back() > 0);
  check_near(run_pairs(files, 2, test::joined(lora, {"parallel.zero.stage=3"})), alone);
}

TEST_CASE("log-probabilities of the reference are kept, and made again where something differs",
          "[train]") {
  const PairFiles files;
  const PairRun first = run_pairs(files, 1, {});
  REQUIRE(files.references() == 2);  // of both splits
  const PairRun again = run_pairs(files, 2, {});
  REQUIRE(files.references() == 2);
  check_near(again, first);
  // Another learning rate starts from the same weights, another seed does not.
  (void)run_pairs(files, 1, {"optimizer.lr=0.02", "preference.beta=0.2", "preference.loss=ipo"});
  REQUIRE(files.references() == 2);
  (void)run_pairs(files, 1, {"run.seed=7"});
  REQUIRE(files.references() == 4);
  (void)run_pairs(files, 1, {"data.subset=20"});  // all of the 7 of the test split
  REQUIRE(files.references() == 5);
  (void)run_pairs(files, 1, {"preference.loss=simpo", "run.seed=8"});
  REQUIRE(files.references() == 5);  // it has none
  // A file that is damaged is made again.
  for (const auto& entry : std::filesystem::directory_iterator(files.path() / "cache")) {
    if (!entry.path().filename().string().starts_with("reference-")) continue;
    std::string bytes = test::slurp(entry.path());
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    test::spit(entry.path(), bytes);
  }
  check_near(run_pairs(files, 1, {}), first);
}

TEST_CASE("pairs go on exactly from a checkpoint, beside the weights that the run began with",
          "[train]") {
  const PairFiles files;
  const test::TempDir folder;
  const Recipe recipe = pair_recipe(files, {});
  const auto step = [](Session& session) {
    session.enqueue_step();
    const StepOutcome outcome = session.executor().take_outcome();
    return std::pair(outcome.loss, outcome.pairs.value().margin());
  };
  std::vector<std::pair<double, double>> whole, resumed;
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        for (int i = 0; i < 2; ++i) whole.push_back(step(session));
        const auto saver = make_saver(make_memory_store(), {.root = folder.path(), .attempt = "1"});
        saver->start(test::test_state(2, 1), session.states().snapshot());
        REQUIRE(saver->wait().value().ok);
        for (int i = 2; i < kPairSteps; ++i) whole.push_back(step(session));
      });
  std::filesystem::remove_all(files.path() / "cache");  // then the reference is made once more
  const auto reader = CheckpointReader::open(folder / "step-00000002", /*verify=*/true);
  test::with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.states().restore(*reader);
        session.executor().set_control({.applied_steps = 2});
        session.seek(2);
        for (int i = 2; i < kPairSteps; ++i) resumed.push_back(step(session));
      });
  CHECK(resumed == std::vector(whole.begin() + 2, whole.end()));
}

}  // namespace dstrain
