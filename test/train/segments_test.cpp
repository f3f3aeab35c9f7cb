#include "engine/train/execute/segments.h"

#include <algorithm>
#include <set>

#include "engine/base/index.h"
#include "engine/models/model.h"
#include "engine/models/trainable.h"
#include "engine/program/phases.h"
#include "engine/program/simulate.h"
#include "engine/program/strategy.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("segments hold the work of all blocks and wait for nothing that comes later",
          "[train][segments]") {
  const int stage = GENERATE(0, 1, 2, 3), shard = GENERATE(1, 2), micro_batches = GENERATE(1, 3);
  const bool recompute = GENERATE(false, true);
  const test::Case c = test::make_case(
      stage, shard, 1, 5,
      {.micro_batches = micro_batches, .prefetch = 1, .recompute = test::recomputed(recompute)});
  const Program program = training_program(c.layout, c.cost, c.options);
  CAPTURE(stage, shard, micro_batches, recompute);
  std::set<int> awaited;
  for (const Action& action : program.actions) {
    awaited.insert(action.after.begin(), action.after.end());
    awaited.insert(action.after_previous.begin(), action.after_previous.end());
  }
  std::set<int> held;
  int last = -1;
  for (const Segment& segment : find_segments(program)) {
    bool runs_a_block = false;
    std::set<Phase> phases;
    for (const int i : segment.actions) {
      const Action& action = program.actions[to_index(i)];
      CHECK(action.lane == Lane::compute);
      CHECK(action.comm.empty());
      CHECK(held.insert(i).second);
      CHECK(i > last);
      last = i;
      if (const auto phase = kind_row(action.kind).phase) phases.insert(*phase);
      // All that a member waits for is enqueued when the first one starts.
      for (const int other : action.after) CHECK(other < segment.actions.front());
      if (i != segment.actions.back()) CHECK(!awaited.contains(i));
      // A wait may only be moved before a clear or a release.
      if (!action.after.empty() || !action.after_previous.empty()) CHECK(!runs_a_block);
      runs_a_block = runs_a_block || action.block >= 0;
    }
    CHECK(runs_a_block);
    CHECK(phases.size() == 1);
  }
  for (int i = 0; i < static_cast<int>(program.actions.size()); ++i) {
    const ActionKind kind = program.actions[to_index(i)].kind;
    // What the host remembers of a gradient must be recorded with the backward that follows.
    if (runs_block(kind) || kind == ActionKind::clear) CHECK(held.contains(i));
  }
}

TEST_CASE("one rank's forward is a segment after each load, and so is its backward",
          "[train][segments]") {
  for (const int micro_batches : {1, 2, 4}) {
    const test::Case c =
        test::make_case(0, 1, 1, 4, {.micro_batches = micro_batches, .prefetch = 1});
    const Program program = training_program(c.layout, c.cost, c.options);
    CAPTURE(micro_batches);
    CHECK(find_segments(program).size() <= 3 * to_index(micro_batches));
  }
}

TEST_CASE("graphs hold eight micro-batches of an ensemble on one rank", "[train][segments]") {
  Recipe recipe;
  recipe.model.name = "ensemble";
  recipe.model.members = {"mobilenet-v2", "resnet18", "vgg11"};
  recipe.batch = {.global = 32, .micro = 4};
  recipe.batch_norm.over = BatchNormOver::ranks;
  recipe.optimizer.name = OptimizerName::sgd;
  recipe.parallel.zero.stage = 1;
  Model model = make_trainable_model(recipe, {});
  const ModelCost cost = model_cost(model, {.micro_batch = recipe.batch.micro, .compute_bytes = 2});
  const Program program = make_strategy(recipe, cost, /*world_size=*/1, h100()).training;
  REQUIRE(program.micro_batches == 8);
  CHECK(worth_recording(program, cost));
  std::set<int> held;
  for (const Segment& segment : find_segments(program))
    held.insert(segment.actions.begin(), segment.actions.end());
  for (int i = 0; i < static_cast<int>(program.actions.size()); ++i) {
    if (runs_block(program.actions[to_index(i)].kind)) CHECK(held.contains(i));
  }
  // Two ranks exchange statistics inside the blocks.
  const Program two = make_strategy(recipe, cost, /*world_size=*/2, h100()).training;
  CHECK_FALSE(worth_recording(two, cost));
}

TEST_CASE("graphs hold exchanges of sequence ranks, and of tensor ranks if two micro-batches run",
          "[train][segments]") {
  const bool sequence = GENERATE(true, false);
  const int concurrent = GENERATE(1, 2);
  const bool held = sequence || concurrent == 2;
  CAPTURE(sequence, concurrent);
  Recipe recipe;
  recipe.model.name = "qwen2.5-0.5b";
  recipe.model.layers = 3;
  recipe.batch = {.global = 4, .micro = 2, .concurrent = concurrent};
  (sequence ? recipe.parallel.sequence : recipe.parallel.tensor) = 2;
  const AxisPart first = {.index = 0, .count = 2};
  Model model = make_trainable_model(
      recipe,
      {.sequence = 64, .splits = sequence ? Splits{.sequence = first} : Splits{.tensor = first}});
  const ModelCost cost = model_cost(model, {.micro_batch = recipe.batch.micro, .compute_bytes = 2});
  const Program program = make_strategy(recipe, cost, /*world_size=*/2, h100()).training;
  CHECK(worth_recording(program, cost) == held);
  std::int64_t exchanging = 0;
  for (const Segment& segment : find_segments(program)) {
    for (const int i : segment.actions)
      CHECK(program.actions[to_index(i)].lane ==
            program.actions[to_index(segment.actions.front())].lane);
    exchanging += std::ranges::count_if(
        segment.actions, [&](int i) { return !program.actions[to_index(i)].comm.empty(); });
  }
  // Three layers, forward and backward of two micro-batches; tensor ranks also of table and head.
  CHECK(exchanging == (sequence ? 12 : held ? 18 : 0));
}

TEST_CASE("graphs are left out where there would be too many", "[train][segments]") {
  const auto worth = [](int micro_batches) {
    const test::Case c =
        test::make_case(0, 1, 1, 6, {.micro_batches = micro_batches, .prefetch = 1});
    return worth_recording(training_program(c.layout, c.cost, c.options), c.cost);
  };
  CHECK(worth(1));
  CHECK(worth(16));
  CHECK(!worth(2000));
}

}  // namespace
}  // namespace dstrain
