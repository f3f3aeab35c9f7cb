#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/store/store.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

/// Mixtures of experts on ranks that share experts, matrices and samples.
namespace dstrain::test {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kMixture = {
    "optimizer.name=sgd", "optimizer.lr=0.1",          "model.vocab_size=96",
    "model.experts=8",    "model.experts_per_token=2", "model.expert_width=24",
    "batch.global=8",     "experts.balance_loss=0.1",  "experts.z_loss=0.01"};

Overrides mixture_of(const std::string& model, const Overrides& more) {
  Overrides all = kMixture;
  all.push_back(model == "qwen2.5-3b-moe" ? "model.shared_width=32" : "model.head_dim=16");
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct ExpertRanks {
  int count = 1;
  Overrides overrides = {};
};

const ExpertRanks kTensorExpert = {4, {"parallel.tensor=2", "parallel.expert=2"}},
                  kSequenceTensor = {4, {"parallel.sequence=2", "parallel.tensor=2"}},
                  kAll = {8,
                          {"parallel.sequence=2", "parallel.tensor=2", "parallel.expert=2",
                           "parallel.zero.stage=3"}},
                  kPipelineExpert = {
                      4, {"parallel.pipeline=2", "parallel.expert=2", "parallel.zero.stage=1"}};

}  // namespace

TEST_CASE("experts over expert and tensor ranks train as on one rank", "[train][experts]") {
  const std::string model =
      GENERATE(as<std::string>(), "qwen2.5-3b-moe", "qwen3-30b-a3b", "mixtral-8x7b");
  const ExpertRanks ranks = GENERATE(kTensorExpert, kSequenceTensor, kAll, kPipelineExpert);
  CAPTURE(model, ranks.count, ranks.overrides);
  static std::map<std::string, Trace> alone;
  if (!alone.contains(model)) alone[model] = small_run(model, 1, mixture_of(model, {}));
  const Trace& expected = alone.at(model);
  check_near(small_run(model, ranks.count, mixture_of(model, ranks.overrides)), expected);
}

TEST_CASE("a rehearsal of experts under a pipeline changes no bit of what follows",
          "[train][experts]") {
  const std::vector<std::string> all = mixture_of("qwen2.5-3b-moe", kPipelineExpert.overrides);
  const Trace expected = small_run("qwen2.5-3b-moe", kPipelineExpert.count, all),
              found = small_run("qwen2.5-3b-moe", kPipelineExpert.count, all, /*rehearse=*/true);
  CHECK(found.losses == expected.losses);
  CHECK(found.weights == expected.weights);
}

TEST_CASE("all ranks report the balance loss of one rank", "[train][experts]") {
  const ExpertRanks ranks = GENERATE(kTensorExpert, kSequenceTensor, kAll, kPipelineExpert);
  CAPTURE(ranks.count, ranks.overrides);
  const auto balance_of = [](const ExpertRanks& layout) {
    const Recipe recipe =
        small_recipe("qwen2.5-3b-moe", mixture_of("qwen2.5-3b-moe", layout.overrides));
    std::vector<double> found(static_cast<std::size_t>(layout.count));
    with_sessions(
        layout.count, [&](int) { return recipe; },
        [&](int rank, Session& session) {
          session.seek(0);
          session.enqueue_step();
          found[static_cast<std::size_t>(rank)] = session.executor().take_outcome().balance_loss;
        });
    return found;
  };
  const double expected = balance_of({}).front();
  REQUIRE(expected > 1);
  for (const double found : balance_of(ranks)) CHECK(found == Approx(expected).epsilon(1e-5));
}

TEST_CASE("adapters of a shared expert drop the same elements on tensor ranks",
          "[train][experts][lora]") {
  const Overrides all = mixture_of("qwen2.5-3b-moe", {"lora.rank=4", "lora.dropout=0.25",
                                                      "lora.targets=[gate_proj, down_proj]"});
  const Overrides tensor =
      mixture_of("qwen2.5-3b-moe", {"lora.rank=4", "lora.dropout=0.25",
                                    "lora.targets=[gate_proj, down_proj]", "parallel.tensor=2"});
  check_near(small_run("qwen2.5-3b-moe", 2, tensor), small_run("qwen2.5-3b-moe", 1, all));
}

TEST_CASE("ranks that share experts exchange what the program says", "[train][experts]") {
  const ExpertRanks ranks = GENERATE(kTensorExpert, kSequenceTensor, kAll);
  const bool recomputed = GENERATE(false, true);
  Overrides all = mixture_of("qwen2.5-3b-moe", ranks.overrides);
  if (recomputed) all.emplace_back("memory.recompute=blocks");
  CAPTURE(ranks.overrides, recomputed);
  const Recipe recipe = small_recipe("qwen2.5-3b-moe", all);
  with_sessions(
      ranks.count, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        session.enqueue_step();
        (void)session.executor().take_outcome();
        using Counts = std::map<std::string, std::pair<std::int64_t, Bytes>>;
        std::map<CommChannel, Counts> named;
        for (const Action& action : session.strategy().training.actions) {
          for (const Comm& comm : action.comm) {
            if (action.lane != Lane::compute) continue;
            std::string operation = comm_name(comm.op);
            std::ranges::replace(operation, '-', '_');
            auto& [calls, bytes] = named[{comm.axis, action.lane}][operation];
            ++calls;
            // Rows come back from experts as many as the tokens choose.
            if (comm.op != CommOp::all_to_all) bytes += comm.bytes;
          }
        }
        for (const auto& [channel, expected] : named) {
          Counts counted;
          for (const CallCount& count : session.communicators().at(channel).counts()) {
            const bool rows = count.operation == "all_to_all";
            if (count.calls > 0) counted[count.operation] = {count.calls, rows ? 0 : count.bytes};
          }
          if (counted != expected)
            throw std::runtime_error(comm_axis_name(channel.axis) +
                                     ": counted and named bytes differ");
        }
      });
}

TEST_CASE("what ranks with experts save is restored on any other layout", "[train][experts]") {
  struct Pair {
    ExpertRanks from, to;
  };
  const Pair pair = GENERATE(Pair{kTensorExpert, {}}, Pair{{}, kAll}, Pair{kAll, kPipelineExpert},
                             Pair{kPipelineExpert, kTensorExpert});
  const auto recipe_of = [](const ExpertRanks& ranks) {
    return small_recipe("qwen2.5-3b-moe", mixture_of("qwen2.5-3b-moe", ranks.overrides));
  };
  const TempDir folder;
  const auto store = make_memory_store();
  std::map<std::string, std::vector<float>> saved;
  with_sessions(
      pair.from.count, [&](int) { return recipe_of(pair.from); },
      [&](int rank, Session& session) {
        session.seek(0);
        session.enqueue_step();
        (void)session.executor().take_outcome();
        const auto saver = make_saver(
            store,
            {.root = folder.path(), .rank = rank, .world_size = pair.from.count, .attempt = "1"});
        saver->start(
            {.step = 1, .world_size = pair.from.count, .base = {}, .recipe = "model: {}\n"},
            session.states().snapshot());
        const auto result = saver->wait();
        if (!result || !result->ok) throw std::runtime_error(result ? result->error : "no result");
        auto weights = session.gathered_weights();
        if (rank == 0) saved = std::move(weights);
      });
  const auto reader = CheckpointReader::open(folder / "step-00000001", /*verify=*/true);
  with_sessions(
      pair.to.count, [&](int) { return recipe_of(pair.to); },
      [&](int rank, Session& session) {
        session.states().restore(*reader);
        const auto weights = session.gathered_weights();
        if (rank == 0) CHECK(weights == saved);
      });
}

TEST_CASE(
    "degrees that do not divide heads, sequence, experts, layers or ranks are refused with "
    "those that work",
    "[train][experts][dimensions]") {
  struct Wrong {
    int ranks;
    Overrides overrides;
    std::string message;
  };
  const Wrong wrong = GENERATE(
      Wrong{3,
            {"parallel.tensor=3"},
            "parallel.tensor: 3 must divide 4 heads, and divide 2 key and value heads or be a "
            "multiple of them; use 2 or 4"},
      Wrong{8,
            {"parallel.sequence=3"},
            "parallel.sequence: 3 ranks have two parts each, but data.sequence: 16 tokens are not "
            "6 equal parts"},
      Wrong{3,
            {"parallel.expert=3"},
            "parallel.expert: 3 does not divide model.experts (8); "
            "use 2 or 4"},
      Wrong{6,
            {"parallel.expert=3", "parallel.tensor=2"},
            "parallel.expert: 3 x parallel.tensor: 2 = 6 ranks do not divide model.experts (8); "
            "with parallel.tensor: 2, use 2 or 4 for parallel.expert"},
      Wrong{4,
            {"parallel.tensor=4", "model.experts=6"},
            "parallel.expert: 1 x parallel.tensor: 4 = 4 ranks do not divide model.experts (6); "
            "use 3 or 6 for parallel.tensor"},
      Wrong{7,
            {"parallel.pipeline=7"},
            "parallel.pipeline: 7 stages, and the model has 6 blocks (embedding and head are two "
            "of them); use at most 6"},
      Wrong{4, {"parallel.pipeline=3"}, "parallel.pipeline: 3 does not divide the 4 ranks"});
  CAPTURE(wrong.overrides);
  std::string message;
  try {
    (void)small_run("qwen2.5-3b-moe", wrong.ranks, mixture_of("qwen2.5-3b-moe", wrong.overrides));
  } catch (const Error& error) {
    message = fmt::format("{}; {}", error.what(), error.hint());
  }
  CHECK_THAT(message, Catch::Contains(wrong.message));
}

}  // namespace dstrain::test
