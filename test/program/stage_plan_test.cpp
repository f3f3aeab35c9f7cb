#include "engine/program/stage_plan.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/program/schedules/visit_times.h"
#include "engine/program/strategy.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using Name = ScheduleName;

/// Layers and head of Qwen2.5-3B at 4,096 tokens, in forwards of a layer: attention has no weights,
/// and the head computes its loss in the backward. 1F1B holds 40 layers.
StageCosts qwen_costs(double layers_held) {
  StageCosts costs{.blocks = {}, .transfer = 0.05, .limits = {}};
  for (int layer = 0; layer < 36; ++layer)
    costs.blocks.push_back({.forward = 1, .input = 1.15, .weight = 0.9, .held = 1, .later = 1});
  costs.blocks.push_back({.forward = 0, .input = 10.9, .weight = 0, .held = 0, .later = 0});
  if (layers_held > 0) costs.limits.assign(4, layers_held);
  return costs;
}

StageCosts joined_qwen_costs() {
  StageCosts costs = qwen_costs(0);
  for (ChunkCost& block : costs.blocks) {
    block.input += block.weight;
    block.weight = block.later = 0;
  }
  return costs;
}

/// In percent, on 4 ranks with 16 micro-batches.
double lost(const CutSchedule& cut, const StageCosts& costs) {
  const LineCost line = line_cost(cut.stages, costs);
  return 100 * time_visits(cut.visits, cut.stages, line).lost(line, 16);
}

double lost(Name name, int per_rank, ChunkOrder order, const StageCosts& costs) {
  return lost(search_cut(name, chunk_ranks(4, per_rank, order), 16, costs), costs);
}

TEST_CASE("searched cuts of Qwen2.5-3B lose what engine/program/README.md says",
          "[program][stages]") {
  const StageCosts joined = joined_qwen_costs();
  const auto loop = ChunkOrder::loop, v = ChunkOrder::v;
  CHECK(lost(Name::gpipe, 1, loop, joined) == Approx(22.0).margin(0.1));
  CHECK(lost(Name::one_f_one_b, 1, loop, joined) == Approx(16.5).margin(0.1));
  CHECK(lost(Name::interleaved, 2, loop, joined) == Approx(7.7).margin(0.1));
  const struct {
    double held, linear, v, loop;
  } rows[] = {{40, 13.0, 7.1, 8.2}, {50, 10.1, 5.2, 5.9}, {60, 6.2, 4.3, 3.9}, {80, 5.0, 2.9, 2.1}};
  for (const auto& row : rows) {
    CAPTURE(row.held);
    const StageCosts costs = qwen_costs(row.held);
    CHECK(lost(Name::zero_bubble, 1, loop, costs) == Approx(row.linear).margin(0.1));
    CHECK(lost(Name::zero_bubble, 2, v, costs) == Approx(row.v).margin(0.1));
    CHECK(lost(Name::zero_bubble, 2, loop, costs) == Approx(row.loop).margin(0.1));
  }
}

TEST_CASE("a searched cut is no worse than the one whose dearest chunk costs least",
          "[program][stages]") {
  const StageCosts costs = qwen_costs(80);
  std::vector<double> all;
  for (const ChunkCost& block : costs.blocks) all.push_back(block.all());
  for (const ChunkOrder order : {ChunkOrder::loop, ChunkOrder::v}) {
    const std::vector<int> rank = chunk_ranks(4, 2, order);
    const Stages first{.first_block = minimax_cut(all, 8), .rank = rank};
    CHECK(search_cut(Name::zero_bubble, rank, 16, costs).makespan <
          schedule_cut(Name::zero_bubble, first, 16, costs).makespan);
  }
}

/// A ViT whose layers split their backward, on four pipeline ranks with 16 micro-batches.
struct PlannedStages {
  ModelCost cost = test::vit_like_model();
  Recipe recipe;

  PlannedStages() {
    for (std::size_t b = 1; b + 1 < cost.blocks.size(); ++b) {
      cost.blocks[b].held_bytes = cost.blocks[b].saved_bytes;
      cost.blocks[b].weight_flops = 0.8 * cost.blocks[b].forward_flops;
    }
    recipe.batch = {.global = 64 * 16, .micro = 64};
    recipe.parallel.pipeline = 4;
    recipe.parallel.zero.stage = 0;
  }
  [[nodiscard]] Strategy strategy() const {
    return make_strategy(recipe, cost, recipe.parallel.pipeline, h200());
  }
  [[nodiscard]] std::string message() const {
    try {
      (void)strategy();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return std::string(error.what()) + "; " + error.hint();
    }
    return "no error";
  }
};

std::vector<int> blocks_of_chunks(const Strategy& strategy, int blocks) {
  const Stages& stages = strategy.layout.stages;
  std::vector<int> list;
  for (int c = 0; c < stages.chunks(); ++c)
    list.push_back(stages.end_block(c, blocks) - stages.first_block[static_cast<std::size_t>(c)]);
  return list;
}

/// Bubble of the step, the mean of the ranks, where transfers and inputs take no time.
double bubble(const Strategy& strategy, const ModelCost& cost) {
  Machine machine = h200();
  machine.link_bytes_per_s = machine.network_bytes_per_s = machine.host_link_bytes_per_s = 1e18;
  machine.host_duplex_bytes_per_s = machine.host_memory_bytes_per_s = 1e18;
  machine.collective_latency_s = machine.collective_compute_share = 0;
  double sum = 0;
  const auto ranks = simulate(strategy.line, strategy.layout, cost, machine);
  for (const Simulation& rank : ranks) sum += rank.bubble_s / rank.step_s;
  return sum / static_cast<double>(ranks.size());
}

TEST_CASE("every schedule of a recipe is planned, and auto ends first", "[program][stages]") {
  PlannedStages p;
  double shortest = 1e9, automatic = 0;
  for (const Name name : {Name::gpipe, Name::one_f_one_b, Name::interleaved, Name::zero_bubble,
                          Name::dual_pipe_v, Name::automatic}) {
    CAPTURE(static_cast<int>(name));
    p.recipe.parallel.stages.schedule = name;
    const Strategy s = p.strategy();
    if (name != Name::automatic) CHECK(s.schedule == name);
    const double step = simulate(s.line, s.layout, p.cost, h200()).front().step_s;
    (name == Name::automatic ? automatic : shortest) =
        name == Name::automatic ? step : std::min(shortest, step);
  }
  CHECK(automatic <= 1.01 * shortest);
}

TEST_CASE("in a simulated line of equal stages 1F1B waits as its formula says",
          "[program][stages]") {
  PlannedStages p;
  for (std::size_t b = 0; b < p.cost.blocks.size(); ++b) {
    p.cost.blocks[b] = p.cost.blocks[1];
    p.cost.blocks[b].groups = {static_cast<int>(b)};
    p.cost.groups[b] = p.cost.groups[1];
    p.cost.blocks[b].held_bytes = 0;
  }
  p.cost.blocks.resize(12);
  p.cost.groups.resize(12);
  for (const Name name : {Name::gpipe, Name::one_f_one_b}) {
    p.recipe.parallel.stages.schedule = name;
    // The update of the states comes on top, and the first block has no input to read.
    CHECK(bubble(p.strategy(), p.cost) == Approx(3.0 / 19).margin(0.006));
  }
  p.recipe.parallel.stages.schedule = Name::interleaved;
  CHECK(bubble(p.strategy(), p.cost) < 3.0 / 19);
}

TEST_CASE("layers of chunks are taken from the recipe", "[program][stages]") {
  PlannedStages p;
  p.recipe.parallel.stages.layers = {3, 4, 4, 1};
  CHECK(blocks_of_chunks(p.strategy(), 14) == std::vector{4, 4, 4, 2});
  p.recipe.parallel.stages.layers = {0, 2, 2, 2, 2, 2, 2, 0};
  CHECK(blocks_of_chunks(p.strategy(), 14) == std::vector{1, 2, 2, 2, 2, 2, 2, 1});
  p.recipe.parallel.stages.layers = {3, 4, 4, 4};
  CHECK(p.message() ==
        "parallel.stages.layers: 15 layers in 4 chunks, and the model has 12 in 4; list 4 numbers "
        "that add up to 12");
  p.recipe.parallel.stages.layers = {6, 0, 3, 3};
  CHECK(p.message() ==
        "parallel.stages.layers: chunk 1 has no layer, embedding or head; give each chunk at least "
        "one");
}

TEST_CASE("stages that cannot be are errors with what would do", "[program][stages]") {
  PlannedStages p;
  p.recipe.parallel.stages.chunks = 4;
  CHECK(p.message() ==
        "parallel.stages: 4 chunks on each of 4 ranks, and the model has 14 blocks "
        "(embedding and head are two of them); use parallel.stages.chunks: 3, or less of "
        "parallel.pipeline");
  p = {};
  p.recipe.parallel.stages.schedule = Name::dual_pipe_v;
  p.recipe.parallel.pipeline = 8;
  CHECK(p.message() ==
        "parallel.stages: 2 chunks on each of 8 ranks, and the model has 14 blocks (embedding and "
        "head are two of them); use at most parallel.pipeline: 7, or parallel.stages.schedule: "
        "1f1b");
  p = {};
  p.recipe.parallel.stages.schedule = Name::dual_pipe_v;
  p.recipe.batch.global = 64 * 7;
  CHECK(p.message() ==
        "parallel.stages.schedule: dual_pipe_v on 4 ranks with 7 micro-batches each; use a "
        "batch.global and batch.micro that make at least 8, or zero_bubble");
}

TEST_CASE("less memory in flight makes a longer step", "[program][stages]") {
  PlannedStages p;
  p.recipe.parallel.stages.schedule = Name::zero_bubble;
  std::vector<double> steps;
  std::vector<Bytes> peaks;
  for (const double in_flight : {4.0, 8.0}) {
    p.recipe.parallel.stages.in_flight = in_flight;
    const Strategy s = p.strategy();
    steps.push_back(simulate(s.line, s.layout, p.cost, h200()).front().step_s);
    Bytes max = 0;
    for (const Program& program : s.line) max = std::max(max, peak_memory(program).activations);
    peaks.push_back(max);
  }
  CHECK(steps[0] >= steps[1]);
  CHECK(peaks[0] < peaks[1]);
}

}  // namespace
}  // namespace dstrain
