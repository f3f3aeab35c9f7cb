#include <fmt/format.h>

#include <cmath>
#include <map>
#include <vector>

#include "engine/recipe/load.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/support/temp_dir.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

/// Training whose samples are spread over ranks gives that of one rank.
namespace dstrain {
namespace {

using Weights = std::map<std::string, std::vector<float>>;
using Overrides = std::vector<std::string>;

constexpr int kSequenceSteps = 2;

/// Questions and answers of some tokens each, for a tokenizer of bytes.
void write_data(const test::TempDir& folder) {
  test::write_text(folder / "tokenizer.json", test::byte_tokenizer({"</s>", "<pad>"}));
  test::write_text(folder / "tokenizer_config.json",
                   R"({"eos_token": "</s>", "pad_token": "<pad>"})");
  const auto lines = [](int first, int count) {
    std::string text;
    for (int i = first; i < first + count; ++i)
      text += fmt::format("{{\"q\": \"{} {}\", \"a\": \"{}\"}}\n", std::string(1 + i % 5, 'x'), i,
                          std::string(1 + i * 7 % 20, static_cast<char>('a' + i % 26)));
    return text;
  };
  test::write_text(folder / "train.jsonl", lines(0, 40));
  test::write_text(folder / "test.jsonl", lines(100, 7));
}

Recipe recipe_of(const test::TempDir& folder, const std::string& model,
                 const Overrides& overrides) {
  const bool bloom = model.starts_with("bloom");
  Overrides all = {"model.name=" + model,
                   "model.width=32",
                   "model.layers=2",
                   "model.heads=4",
                   "model.vocab_size=300",
                   "data.name=jsonl",
                   "data.path=" + folder.path().string(),
                   "data.cache=" + (folder / "cache").string(),
                   "data.tokenizer=" + folder.path().string(),
                   "data.prompt=\"{q}: \"",
                   "data.response=\"{a}\"",
                   "data.sequence=32",
                   "batch.global=6",
                   "batch.micro=3",
                   "precision.compute=fp32",
                   fmt::format("run.steps={}", kSequenceSteps),
                   "run.evaluate=1",
                   "run.generate=2",
                   "run.generate_tokens=4",
                   "optimizer.name=sgd",
                   "optimizer.betas=[0.9, 0.95]",
                   "optimizer.lr=0.5"};
  if (!bloom) all.push_back("model.mlp_width=64");
  if (!bloom && model != "gpt2") all.push_back("model.kv_heads=2");
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(
             bloom ? "recipes/bloom/bloom-560m_random.yaml" : "recipes/qwen/qwen2.5-3b_random.yaml",
             all)
      .recipe;
}

struct Run {
  std::vector<double> losses, norms, targets;
  EvaluationTotals evaluation;
  std::vector<std::string> answers;
  Weights before, after;
};

Run run(const Recipe& recipe, int ranks, bool rehearse = false) {
  std::vector<Run> by_rank(static_cast<std::size_t>(ranks));
  test::with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        Run& own = by_rank[static_cast<std::size_t>(rank)];
        own.before = session.gathered_weights();
        session.seek(0);
        if (rehearse) session.rehearse();
        for (int step = 0; step < kSequenceSteps; ++step) {
          session.enqueue_step();
          const StepOutcome outcome = session.executor().take_outcome();
          own.losses.push_back(outcome.loss);
          own.norms.push_back(outcome.gradient_norm);
          own.targets.push_back(outcome.targets);
        }
        own.evaluation = session.evaluate();
        for (const GeneratedAnswer& answer : session.generate())
          own.answers.push_back(answer.generated);
        own.after = session.gathered_weights();
      });
  for (const Run& other : by_rank) {
    REQUIRE(other.losses == by_rank.front().losses);
    REQUIRE(other.answers == by_rank.front().answers);
  }
  return by_rank.front();
}

double norm_of(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * double{value};
  return std::sqrt(squares);
}

/// The sum of two steps of SGD, by file tensor: within 1e-5 of its norm and fp32's rounding of the
/// weights.
void check_updates(const Run& found, const Run& expected) {
  REQUIRE(found.after.size() == expected.after.size());
  double largest = 0;
  for (const auto& [name, after] : expected.after) {
    const std::vector<float>& before = expected.before.at(name);
    std::vector<float> update(after.size());
    for (std::size_t i = 0; i < after.size(); ++i) update[i] = after[i] - before[i];
    largest = std::max(largest, norm_of(update));
    std::vector<float> difference(after.size());
    for (std::size_t i = 0; i < after.size(); ++i)
      difference[i] = found.after.at(name)[i] - after[i];
    CAPTURE(name, norm_of(update));
    CHECK(norm_of(difference) <= 1e-5 * norm_of(update) + 4 * 0x1p-24 * norm_of(after) + 1e-7);
  }
  CHECK(largest > 1e-3);
}

void check_equal(const Run& found, const Run& expected) {
  test::check_near(found.losses, expected.losses);
  test::check_near(found.norms, expected.norms);
  CHECK(found.targets == expected.targets);
  test::check_near({found.evaluation.loss, found.evaluation.targets},
                   {expected.evaluation.loss, expected.evaluation.targets});
  CHECK(found.answers == expected.answers);
  check_updates(found, expected);
}

struct Way {
  int ranks;
  Overrides overrides;
};

}  // namespace

TEST_CASE("samples spread over ranks train, evaluate and answer as on one rank",
          "[train][parity][sequence]") {
  const test::TempDir folder;
  write_data(folder);
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "bloom-560m", "gpt2");
  const bool packed = GENERATE(false, true), adapters = GENERATE(false, true);
  Overrides common;
  if (packed) common.push_back("data.packing=true");
  if (adapters) common.insert(common.end(), {"lora.rank=2", "lora.dropout=0.3"});
  const Run expected = run(recipe_of(folder, model, common), 1);
  const Way ways[] = {
      {2, {"parallel.sequence=2"}},
      {2, {"parallel.sequence=2", "parallel.sequence_attention=heads", "parallel.zero.stage=1"}},
      {4, {"parallel.sequence=2", "parallel.zero.stage=2", "memory.recompute=blocks"}},
      {4, {"parallel.sequence=4", "parallel.zero.stage=3"}}};
  for (const Way& way : ways) {
    CAPTURE(model, packed, adapters, way.ranks, way.overrides);
    Overrides all = common;
    all.insert(all.end(), way.overrides.begin(), way.overrides.end());
    check_equal(run(recipe_of(folder, model, all), way.ranks), expected);
  }
}

TEST_CASE("an answer follows the whole prompt, however long it may become", "[train][text]") {
  const test::TempDir folder;
  write_data(folder);
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "bloom-560m");
  const auto answers = [&](const char* max) {
    return run(recipe_of(folder, model, {fmt::format("run.generate_tokens={}", max)}), 1).answers;
  };
  const std::vector<std::string> brief = answers("2"), whole = answers("32");
  REQUIRE(brief.size() == 2);
  REQUIRE(whole.size() == 2);
  for (std::size_t i = 0; i < brief.size(); ++i) CHECK(whole[i].starts_with(brief[i]));
}

TEST_CASE("answers are the same where ranks hold all weights and share the samples, or hold parts",
          "[train][parity][text]") {
  const test::TempDir folder;
  write_data(folder);
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "bloom-560m");
  const auto answers = [&](int ranks, Overrides all) {
    all.insert(all.end(), {"run.generate=7", "run.generate_tokens=12", "lora.rank=2"});
    return run(recipe_of(folder, model, all), ranks).answers;
  };
  const std::vector<std::string> expected = answers(1, {});
  CHECK(expected.size() == 7);
  for (const Overrides& all : std::vector<Overrides>{{"parallel.zero.stage=0"},
                                                     {"parallel.zero.stage=1", "ema.decay=0.5"},
                                                     {"parallel.zero.stage=2"},
                                                     {"parallel.zero.stage=3"},
                                                     {"parallel.tensor=2"}}) {
    CAPTURE(all);
    CHECK(answers(2, all) == expected);
  }
}

TEST_CASE("prompts that fill the sequence are left out, and those with little room counted",
          "[train][text]") {
  const auto samples = [](const std::vector<std::size_t>& lengths) {
    std::vector<TextQuestion> list;
    for (const std::size_t length : lengths)
      list.push_back({.prompt_tokens = std::vector<std::int64_t>(length),
                      .prompt = {},
                      .response = {},
                      .answers = {}});
    return list;
  };
  std::vector<TextQuestion> all = samples({4, 5, 6, 8, 9});
  CHECK(keep_answerable(all, 8, 3) ==
        "run.generate: of 5 prompts 2 fill data.sequence (8) and get no answer, 1 leave room for "
        "fewer than run.generate_tokens (3); a longer data.sequence has room");
  CHECK(all.size() == 3);
  CHECK(keep_answerable(all, 9, 3) == "");
}

TEST_CASE("a stage with the head alone answers as one rank, rehearsed or not",
          "[train][parity][sequence][tensor]") {
  const test::TempDir folder;
  write_data(folder);
  const Way way = GENERATE(Way{6, {"parallel.pipeline=3", "parallel.sequence=2"}},
                           Way{6, {"parallel.pipeline=3", "parallel.tensor=2"}},
                           Way{3, {"parallel.pipeline=3"}});
  // A table that tensor ranks do not divide: the loss needs nothing of others.
  Overrides all = {"model.vocab_size=301", "parallel.stages.schedule=1f1b"};
  const Run expected = run(recipe_of(folder, "qwen2.5-7b", {"model.vocab_size=301"}), 1);
  all.insert(all.end(), way.overrides.begin(), way.overrides.end());
  CAPTURE(way.overrides);
  const Run found = run(recipe_of(folder, "qwen2.5-7b", all), way.ranks);
  test::check_near(found.losses, expected.losses);
  CHECK(found.answers == expected.answers);
  const Run rehearsed = run(recipe_of(folder, "qwen2.5-7b", all), way.ranks, /*rehearse=*/true);
  CHECK(rehearsed.answers == found.answers);
  CHECK(rehearsed.after == found.after);
}

}  // namespace dstrain
