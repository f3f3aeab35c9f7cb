#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/program/activation_memory.h"
#include "engine/program/measured_machine.h"
#include "engine/recipe/load.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/variable.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

// Offload changes no bit: losses, norms, weights and evaluations equal those of the same run with
// everything on the device.

namespace dstrain {
namespace {

using test::joined;
using test::with_sessions;

/// With one step behind the evaluation.
constexpr std::size_t kOffloadSteps = 3;

/// A directory on a disk; temporary directories may be in memory, which files are refused in.
std::string disk() { return std::filesystem::current_path().string(); }

Recipe offload_recipe(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"data.subset=74",  // an evaluation of few micro-batches
                                        "batch.global=24",
                                        "batch.micro=6",
                                        "run.steps=3",
                                        "run.epochs=0",
                                        "model.layers=5",
                                        "model.width=32",
                                        "model.mlp_width=64",
                                        "model.heads=2",
                                        "optimizer.clip_norm=0.5",
                                        "data.workers=1",
                                        "memory.offload.chunk=1024",
                                        "memory.offload.threads=2"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return load_recipe("recipes/quickstart.yaml", overrides).recipe;
}

struct OffloadOutcome {
  std::vector<double> numbers;  ///< losses and norms of the steps, and the evaluation's loss
  std::map<std::string, std::vector<float>> weights;
  bool operator==(const OffloadOutcome&) const = default;
};

/// Evaluations take longer than the steps.
enum class Evaluates { kNo, kYes };

OffloadOutcome trained(int ranks, const std::vector<std::string>& overrides, Evaluates evaluates,
                       const std::string& device = "") {
  const Recipe recipe = offload_recipe(overrides);
  OffloadOutcome outcome;
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        std::vector<double> numbers;
        session.seek(0);
        for (std::size_t step = 0; step < kOffloadSteps; ++step) {
          session.enqueue_step();
          const StepOutcome out = session.executor().take_outcome();
          numbers.push_back(out.loss);
          numbers.push_back(out.gradient_norm);
          if (step == 1 && evaluates == Evaluates::kYes) numbers.push_back(session.evaluate().loss);
        }
        auto weights = session.gathered_weights();
        if (rank == 0) outcome = {std::move(numbers), std::move(weights)};
      },
      device);
  return outcome;
}

std::string offload(const char* what, const char* place) {
  return fmt::format("memory.offload.{}={}", what, place);
}

/// Ways to offload, the first of which names states, the second parameters, the third inputs.
std::vector<std::vector<std::string>> ways(bool parameters_may) {
  std::vector<std::vector<std::string>> list;
  const std::string path = "memory.offload.path=" + disk();
  for (const char* update : {"memory.offload.update=gpu", "memory.offload.update=cpu"}) {
    list.push_back({offload("optimizer", "pinned"), update});
    list.push_back({offload("optimizer", "pinned"), update, "memory.offload.share=0.5"});
    if (parameters_may)
      list.push_back({offload("optimizer", "pinned"), offload("parameters", "pinned"), update});
  }
  list.push_back({offload("optimizer", "pageable")});
  list.push_back({offload("optimizer", "file"), path});
  list.push_back({offload("activations", "pinned")});
  list.push_back({offload("activations", "file"), offload("optimizer", "pageable"), path});
  if (parameters_may) {
    list.push_back({offload("parameters", "pinned")});
    list.push_back({offload("parameters", "pageable"), offload("optimizer", "file"), path});
    list.push_back({offload("parameters", "file"), offload("optimizer", "pageable"),
                    offload("activations", "pageable"), path});
  }
  return list;
}

void check_all_ways(int ranks, const std::vector<std::string>& base, bool parameters_may,
                    Evaluates evaluates = Evaluates::kYes) {
  const OffloadOutcome expected = trained(ranks, base, evaluates);
  REQUIRE(expected.numbers.size() == 2 * kOffloadSteps + (evaluates == Evaluates::kYes ? 1 : 0));
  for (const std::vector<std::string>& way : ways(parameters_may)) {
    CAPTURE(ranks, fmt::format("{} + {}", fmt::join(base, " "), fmt::join(way, " ")));
    const OffloadOutcome found = trained(ranks, joined(base, way), evaluates);
    CHECK(found.numbers == expected.numbers);
    CHECK((found.weights == expected.weights));
  }
}

}  // namespace

TEST_CASE("offload changes no bit under any stage", "[train]") {
  const int ranks = GENERATE(1, 2, 3);
  const int stage = GENERATE(0, 1, 2, 3);
  if (ranks == 1 && stage > 0) return;
  check_all_ways(ranks, {fmt::format("parallel.zero.stage={}", stage), "memory.recompute=blocks"},
                 ranks == 1 || stage == 3);
}

TEST_CASE("offload changes no bit under any precision, optimizer and batch", "[train]") {
  const std::vector<std::vector<std::string>> bases = {
      {"precision.compute=bf16"},
      {"precision.compute=bf16", "precision.states=bf16"},
      {"precision.compute=bf16", "precision.states=fp32_split"},
      {"precision.compute=bf16", "precision.gradients=bf16", "precision.reduce=bf16"},
      {"precision.compute=bf16", "precision.states=bf16", "precision.gradients=bf16",
       "precision.reduce=bf16"},
      {"precision.compute=fp16"},
      {"optimizer.name=sgd", "optimizer.lr=0.1"},
      {"optimizer.name=lion", "precision.compute=bf16"},
      {"batch.micro=12", "parallel.zero.prefetch=0"},
  };
  // One evaluation each in fp32 (above), bf16 and fp16: optimizers and gradients are not in it.
  // Five groups, still more than slots: what is in a group does not depend on how many there are.
  for (const std::vector<std::string>& base : bases)
    check_all_ways(
        2, joined(base, {"parallel.zero.stage=3", "memory.recompute=blocks", "model.layers=3"}),
        true, base.size() == 1 ? Evaluates::kYes : Evaluates::kNo);
}

/// A machine whose link between device and host is so slow that plans want states on their way
/// whenever there is room. Set while it lives.
class SlowLink {
 public:
  SlowLink() : config_("XDG_CONFIG_HOME", folder_.path()) {
    save_measured(measured_file_to_write(), {.device = "CPU",
                                             .measured = "2026-11-30",
                                             .host = "test",
                                             .flops_per_s = 1e9,
                                             .memory_bytes_per_s = 1e11,
                                             .host_link_bytes_per_s = 2e7,
                                             .host_copy_bytes_per_s = 1e9,
                                             .host_duplex_bytes_per_s = 1e8,
                                             .host_memory_bytes_per_s = 1e11,
                                             .host_update_bytes_per_s = 1e10});
  }

 private:
  test::TempDir folder_;
  test::Variable config_;
};

TEST_CASE("states in transient slots and in the gradients' memory change no bit", "[train]") {
  const int ranks = GENERATE(1, 2);
  const bool parameters = GENERATE(false, true);
  // The second moment of each is as wide as the gradient.
  const auto [states, gradients] = GENERATE(table<const char*, const char*>(
      {{"fp32", "fp32"}, {"fp32_split", "fp32"}, {"bf16", "bf16"}}));
  CAPTURE(ranks, parameters, states);
  std::vector<std::string> base = {"precision.compute=bf16",
                                   "batch.micro=24",
                                   fmt::format("precision.states={}", states),
                                   fmt::format("precision.gradients={}", gradients),
                                   fmt::format("precision.reduce={}", gradients),
                                   fmt::format("parallel.zero.stage={}", ranks == 1 ? 0 : 3)};
  std::vector<std::string> way = {offload("optimizer", "pinned"), "memory.offload.update=gpu"};
  if (parameters) way.push_back(offload("parameters", "pinned"));
  const OffloadOutcome expected = trained(ranks, base, Evaluates::kYes);
  const SlowLink link;
  with_sessions(
      ranks, [&](int) { return offload_recipe(joined(base, way)); },
      [&](int, Session& session) {
        CHECK(session.strategy().options.transient_slots);
        // With bf16 moments so little leaves that it does not pay everywhere.
        CHECK((session.strategy().options.park_state || std::string(states) == "bf16"));
        CHECK(transient_slots(session.strategy().training).size() > 4);
      },
      "CPU");
  const OffloadOutcome found = trained(ranks, joined(base, way), Evaluates::kYes, "CPU");
  CHECK(found.numbers == expected.numbers);
  CHECK((found.weights == expected.weights));
}

TEST_CASE("offload changes no bit beside adapters", "[train]") {
  check_all_ways(1, {"lora.rank=4", "memory.recompute=blocks"}, true);
}

TEST_CASE("states on the host are copied for a save where there is room, else read in place",
          "[train]") {
  const char* place = GENERATE("pinned", "pageable", "file");
  const char* format = GENERATE("fp32", "fp32_split", "bf16");
  std::vector<std::string> overrides = {
      "precision.compute=bf16", offload("optimizer", place), "memory.offload.share=0.5",
      fmt::format("precision.states={}", format), "memory.offload.path=" + disk()};
  CAPTURE(place, format);
  const Recipe recipe = offload_recipe(overrides);
  with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        session.enqueue_step();
        (void)session.executor().take_outcome();
        const StateStore& states = session.states();
        const CheckpointPart copied = states.snapshot(), live = states.snapshot(0);
        const auto values = [](const CheckpointPart& part) {
          std::vector<std::vector<float>> all;
          for (std::size_t i = 0; i < part.pieces.size(); ++i) {
            all.emplace_back(static_cast<std::size_t>(part.pieces[i].numel()));
            // In two reads, the first of which ends in the midst of a row.
            const std::int64_t count = part.pieces[i].numel(), cut = count / 2;
            part.reads[i]({0, cut}, std::span(all.back()).first(static_cast<std::size_t>(cut)));
            part.reads[i]({cut, count},
                          std::span(all.back()).subspan(static_cast<std::size_t>(cut)));
          }
          return all;
        };
        std::int64_t count = 0;
        for (const Piece& piece : copied.pieces) count += piece.numel();
        CHECK_FALSE(copied.live);
        CHECK(copied.copied_values >= count);  // with padding
        CHECK(live.live);
        CHECK(live.copied_values > 0);  // what is on the device
        CHECK(live.copied_values < count * 2 / 3);
        CHECK((live.pieces == copied.pieces));
        const auto expected = values(copied);
        CHECK((values(live) == expected));
        session.enqueue_step();
        (void)session.executor().take_outcome();
        CHECK((values(copied) == expected));
      });
}

TEST_CASE("parameters that rest whole on several ranks are not offloaded", "[train]") {
  const Recipe recipe =
      offload_recipe({"parallel.zero.stage=2", "memory.offload.parameters=pinned"});
  CHECK_THROWS_WITH(with_sessions(
                        2, [&](int) { return recipe; }, [](int, Session&) {}),
                    Catch::Contains("memory.offload.parameters"));
  const Recipe tensor = offload_recipe(
      {"parallel.zero.stage=1", "parallel.tensor=2", "memory.offload.parameters=pinned"});
  CHECK_THROWS_WITH(with_sessions(
                        2, [&](int) { return tensor; }, [](int, Session&) {}),
                    Catch::Contains("tensor or sequence ranks share the states"));
}

TEST_CASE("as many states leave as a pipeline of any schedule needs", "[train]") {
  const char* schedule = GENERATE("1f1b", "gpipe", "zero_bubble", "interleaved");
  const Recipe recipe =
      offload_recipe({"parallel.pipeline=2", "batch.micro=2", offload("optimizer", "pinned"),
                      "memory.offload.share=0", "memory.limit=3",
                      fmt::format("parallel.stages.schedule={}", schedule)});
  CAPTURE(schedule);
  with_sessions(
      2, [&](int) { return recipe; },
      [&](int, Session& session) { CHECK(session.strategy().line.size() == 2); });
}

}  // namespace dstrain
