#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/store/store.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/support/temp_dir.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

/// Checkpoints that any layout of ranks has saved, restored on any other.
namespace dstrain::test {
namespace {

using Overrides = std::vector<std::string>;

constexpr int kSavedStep = 2, kLastStep = 4;

struct LayoutRanks {
  std::string name;
  int count = 1;
  Overrides overrides = {};
};

/// One model, and the layouts that it is saved and restored on.
struct Matrix {
  std::string model;
  Overrides sizes;
  std::vector<LayoutRanks> layouts;
};

/// Whole tensors by file name, put together from what ranks save.
class WholeTensors {
 public:
  /// Called by several ranks at once.
  void add(const CheckpointPart& part) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < part.pieces.size(); ++i) {
      const Piece& box = part.pieces[i];
      std::vector<float> read(static_cast<std::size_t>(box.numel()));
      part.reads[i]({0, box.numel()}, read);
      std::vector<float>& whole = whole_of(box);
      for (std::int64_t element = 0; element < box.numel(); ++element) {
        float& value = whole[static_cast<std::size_t>(box.whole_index(element))];
        if (!std::isnan(value)) throw std::runtime_error(box.name + " is saved twice");
        value = read[static_cast<std::size_t>(element)];
      }
    }
  }
  void add(const CheckpointReader& reader) {
    for (const Piece& tensor : reader.tensors()) reader.read(tensor, whole_of(tensor));
  }
  /// False also where an element has not been saved: it is not a number.
  bool operator==(const WholeTensors& other) const { return values_ == other.values_; }
  [[nodiscard]] std::size_t count() const { return values_.size(); }

 private:
  std::vector<float>& whole_of(const Piece& box) {
    const std::size_t size = static_cast<std::size_t>(Piece(box.name, box.shape).numel());
    return values_.try_emplace(box.name, size, std::numeric_limits<float>::quiet_NaN())
        .first->second;
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<float>> values_;
};

/// Losses and gradient norms of the steps behind the checkpoint.
struct Steps {
  std::vector<double> losses, norms;
  bool operator==(const Steps&) const = default;
};

StepOutcome make_step(Session& session) {
  session.enqueue_step();
  return session.executor().take_outcome();
}

Steps last_steps(Session& session) {
  Steps steps;
  while (session.next_step() < kLastStep) {
    const StepOutcome outcome = make_step(session);
    steps.losses.push_back(outcome.loss);
    steps.norms.push_back(outcome.gradient_norm);
  }
  return steps;
}

void save(Session& session, CheckpointSaver& saver, const StepOutcome& outcome, int ranks) {
  session.executor().finish_updates();
  saver.start({.step = kSavedStep,
               .samples = session.samples_before(kSavedStep),
               .optimizer_steps = static_cast<std::int64_t>(outcome.applied_steps),
               .world_size = ranks,
               .base = {},
               .recipe = "model: {}\n"},
              session.states().snapshot(/*room=*/0));
  const auto result = saver.wait();
  if (!result || !result->ok) throw std::runtime_error(result ? result->error : "no result");
}

Recipe recipe_of(const Matrix& matrix, const LayoutRanks& ranks) {
  Overrides all = matrix.sizes;
  all.insert(all.end(), ranks.overrides.begin(), ranks.overrides.end());
  all.push_back(fmt::format("run.steps={}", kLastStep));
  return small_recipe(matrix.model, all);
}

/// What rank 0 saw after it took part in a save to `root`.
Steps saved_run(const Recipe& recipe, int ranks, const std::filesystem::path& root) {
  Steps steps;
  const auto store = make_memory_store();
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        StepOutcome outcome;
        while (session.next_step() < kSavedStep) outcome = make_step(session);
        const auto saver =
            make_saver(store, {.root = root, .rank = rank, .world_size = ranks, .attempt = "1"});
        save(session, *saver, outcome, ranks);
        Steps own = last_steps(session);
        if (rank == 0) steps = std::move(own);
      });
  return steps;
}

/// What rank 0 saw of a run that goes on from the checkpoint; `restored` gets what the ranks would
/// save at its begin.
Steps resumed_run(const Recipe& recipe, int ranks, const CheckpointReader& reader,
                  WholeTensors& restored, bool goes_on) {
  Steps steps;
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.states().restore(reader);
        session.executor().set_control(
            {.applied_steps = static_cast<double>(reader.state().optimizer_steps)});
        restored.add(session.states().snapshot(/*room=*/0));
        if (!goes_on) return;
        session.seek(reader.state().step);
        Steps own = last_steps(session);
        if (rank == 0) steps = std::move(own);
      });
  return steps;
}

/// Within what another order of fp32 sums allows.
void check_near_by_step(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double allowed = 64 * unit_roundoff(at::kFloat) * std::sqrt(static_cast<double>(i + 1));
    CHECK(std::abs(found[i] - expected[i]) <= allowed * expected[i]);
  }
}

/// Every layout gets every other's state bit for bit; steps follow on the same one, on the next and
/// on one half of the list away, so that each goes on from two others.
void check_matrix(const Matrix& matrix) {
  const TempDir folder;
  const std::size_t count = matrix.layouts.size();
  for (std::size_t i = 0; i < count; ++i) {
    const LayoutRanks& from = matrix.layouts[i];
    INFO("saved on " << from.name);
    const std::filesystem::path root = folder / from.name;
    const Steps expected = saved_run(recipe_of(matrix, from), from.count, root);
    const auto reader = CheckpointReader::open(root / "step-00000002", /*verify=*/true);
    WholeTensors saved;
    saved.add(*reader);
    REQUIRE(saved.count() > 0);
    for (std::size_t j = 0; j < count; ++j) {
      const LayoutRanks& to = matrix.layouts[j];
      INFO("restored on " << to.name);
      const std::size_t away = (j + count - i) % count;
      const bool goes_on = away <= 1 || away == count / 2;
      WholeTensors restored;
      const Steps found = resumed_run(recipe_of(matrix, to), to.count, *reader, restored, goes_on);
      CHECK(restored == saved);
      if (!goes_on) continue;
      if (i == j) {
        CHECK(found == expected);
      } else {
        check_near_by_step(found.losses, expected.losses);
        check_near_by_step(found.norms, expected.norms);
      }
    }
  }
}

}  // namespace

TEST_CASE("a dense model goes on from any layout's checkpoint on any other", "[train][matrix]") {
  // A tied table that 2 tensor ranks divide and 4 do not; 4 tensor ranks share 2 key heads.
  check_matrix(
      {"qwen2.5-0.5b",
       {"model.vocab_size=98", "batch.global=16", "batch.micro=2"},
       {
           {"one rank"},
           {"3 data, stage 1", 3, {"parallel.zero.stage=1"}},
           {"4 data, stage 2 in shards of 2",
            4,
            {"parallel.zero.stage=2", "parallel.zero.shard=2"}},
           {"2 data, stage 3 offloaded",
            2,
            {"parallel.zero.stage=3", "memory.offload.optimizer=pageable",
             "memory.offload.parameters=pageable"}},
           {"2 stages of gpipe, 2 data",
            4,
            {"parallel.pipeline=2", "parallel.stages.schedule=gpipe", "parallel.zero.stage=0"}},
           {"3 uneven stages of 1f1b",
            3,
            {"parallel.pipeline=3", "parallel.stages.schedule=1f1b",
             "parallel.stages.layers=[1, 2, 1]"}},
           {"2 interleaved stages",
            2,
            {"parallel.pipeline=2", "parallel.stages.schedule=interleaved",
             "parallel.stages.chunks=3"}},
           {"2 stages in V, 2 data, stage 3",
            4,
            {"parallel.pipeline=2", "parallel.stages.schedule=dual_pipe_v",
             "parallel.zero.stage=3"}},
           {"4 tensor", 4, {"parallel.tensor=4", "parallel.zero.stage=0"}},
           {"2 tensor, 2 stages, 2 data, stage 1",
            8,
            {"parallel.tensor=2", "parallel.pipeline=2", "parallel.stages.schedule=zero_bubble",
             "parallel.zero.stage=1"}},
           {"2 sequence, 2 tensor, stage 3",
            4,
            {"parallel.sequence=2", "parallel.tensor=2", "parallel.zero.stage=3"}},
           {"2 sequence, 2 tensor, 2 stages",
            8,
            {"parallel.sequence=2", "parallel.tensor=2", "parallel.pipeline=2",
             "parallel.zero.stage=2"}},
       }});
}

TEST_CASE("a mixture of experts goes on from any layout's checkpoint on any other",
          "[train][matrix]") {
  check_matrix(
      {"qwen2.5-3b-moe",
       {"batch.global=12", "model.experts=4", "model.experts_per_token=2", "model.expert_width=24",
        "model.shared_width=32"},
       {
           {"one rank"},
           {"3 data, stage 3", 3, {"parallel.zero.stage=3"}},
           {"2 expert, stage 0", 2, {"parallel.expert=2", "parallel.zero.stage=0"}},
           {"2 expert, 2 data, stage 3", 4, {"parallel.expert=2", "parallel.zero.stage=3"}},
           {"4 expert, stage 2", 4, {"parallel.expert=4", "parallel.zero.stage=2"}},
           {"2 expert, 2 tensor", 4, {"parallel.expert=2", "parallel.tensor=2"}},
           {"2 expert, 2 stages",
            4,
            {"parallel.expert=2", "parallel.pipeline=2", "parallel.zero.stage=1"}},
       }});
}

TEST_CASE("adapters go on from any layout's checkpoint on any other", "[train][matrix][lora]") {
  // Masks are drawn by micro-batch: an epoch's last batch must not be a smaller one.
  check_matrix({"qwen2.5-0.5b",
                {"batch.global=12", "data.samples=96", "lora.rank=4", "lora.dropout=0.25",
                 "lora.targets=[q_proj, k_proj, v_proj, o_proj, gate_proj, down_proj]"},
                {
                    {"one rank"},
                    {"3 data, stage 3", 3, {"parallel.zero.stage=3"}},
                    {"2 stages", 2, {"parallel.pipeline=2"}},
                    {"4 tensor", 4, {"parallel.tensor=4", "parallel.zero.stage=1"}},
                    {"2 sequence, 2 tensor, 2 stages",
                     8,
                     {"parallel.sequence=2", "parallel.tensor=2", "parallel.pipeline=2"}},
                }});
}

}  // namespace dstrain::test
