#include "engine/program/strategy.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/program/simulate.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

Recipe recipe(int stage, int global, int micro) {
  Recipe r;
  r.parallel.zero.stage = stage;
  r.batch = {.global = global, .micro = micro};
  return r;
}

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return std::string(error.what()) + "; " + error.hint();
  }
  return "no error";
}

TEST_CASE("accumulation is what the global batch needs, the rest is filled up", "[strategy]") {
  const auto accumulation = [](int global, int micro, int ranks) {
    const BatchPlan plan = plan_batch({.global = global, .micro = micro}, ranks);
    return std::vector<int>{plan.micro_batches, plan.fillers()};
  };
  CHECK(accumulation(512, 64, 1) == std::vector<int>{8, 0});
  CHECK(accumulation(512, 64, 4) == std::vector<int>{2, 0});
  CHECK(accumulation(512, 64, 3) == std::vector<int>{3, 64});  // 171 a rank
  CHECK(accumulation(100, 64, 1) == std::vector<int>{2, 28});
  CHECK(accumulation(3, 2, 8) == std::vector<int>{1, 13});  // some ranks see fillers only
}

TEST_CASE("fillers are less than one micro-batch and one sample for each rank",
          "[strategy][property]") {
  const int global = GENERATE(1, 7, 64, 100, 513), micro = GENERATE(1, 3, 64),
            ranks = GENERATE(1, 2, 3, 8);
  const BatchPlan plan = plan_batch({.global = global, .micro = micro}, ranks);
  CAPTURE(global, micro, ranks);
  CHECK(plan.fillers() >= 0);
  CHECK(plan.fillers() < micro * ranks + ranks);
}

TEST_CASE("data ranks lie on the data axis without ZeRO, on the shard axis with it", "[strategy]") {
  CHECK(Mesh(8, mesh_degrees({.zero = {.stage = 0}}, 8)).describe() == "data 8");
  CHECK(Mesh(8, mesh_degrees({.zero = {.stage = 2}}, 8)).describe() == "shard 8");
  CHECK(Mesh(8, mesh_degrees({.zero = {.stage = 3, .shard = 4}}, 8)).describe() ==
        "data 2 x shard 4");
  CHECK(Mesh(8, mesh_degrees({.zero = {.stage = 3, .shard = 1}}, 8)).describe() == "data 8");
}

TEST_CASE("degrees that cannot be are errors with valid ones", "[strategy]") {
  CHECK(message_of([] { (void)mesh_degrees({.zero = {.stage = 3, .shard = 3}}, 8); }) ==
        "parallel.zero.shard: 3 does not divide the 8 data ranks; use 1, 2, 4, 8, or 0 for all of "
        "them");
  CHECK(message_of([] { (void)mesh_degrees({.zero = {.stage = 1, .shard = -2}}, 8); }) ==
        "parallel.zero.shard: -2 does not divide the 8 data ranks; use 1, 2, 4, 8, or 0 for all of "
        "them");
  CHECK(message_of([] { (void)mesh_degrees({.zero = {}, .expert = 3}, 8); }) ==
        "parallel.expert: 3 does not divide the 8 ranks; use 1, 2, 4, 8, or a multiple of 3 ranks");
  CHECK(message_of([] { (void)mesh_degrees({.zero = {}, .pipeline = 3}, 8); }) ==
        "parallel.pipeline: 3 does not divide the 8 ranks; use 1, 2, 4, 8, or a multiple of 3 "
        "ranks");
  CHECK(message_of([] { (void)mesh_degrees({.zero = {}, .tensor = 3, .pipeline = 2}, 8); }) ==
        "parallel.pipeline: 2, tensor: 3: together they need a multiple of 6 ranks, here are 8; "
        "start 6 ranks, or on 8 give --set parallel.tensor=1");
  // As the recipes of three, four and five dimensions on two ranks.
  CHECK(message_of([] { (void)mesh_degrees({.zero = {}, .tensor = 2, .pipeline = 2}, 2); }) ==
        "parallel.pipeline: 2, tensor: 2: together they need a multiple of 4 ranks, here are 2; "
        "start 4 ranks, or on 2 give --set parallel.tensor=1");
  CHECK(message_of([] {
          (void)mesh_degrees({.zero = {}, .tensor = 2, .sequence = 2, .pipeline = 2}, 2);
        }) ==
        "parallel.pipeline: 2, tensor: 2, sequence: 2: together they need a multiple of 8 ranks, "
        "here are 2; start 8 ranks, or on 2 give --set parallel.tensor=1 --set "
        "parallel.sequence=1");
  CHECK(message_of([] { (void)mesh_degrees({.zero = {}, .pipeline = 2, .expert = 2}, 2); }) ==
        "parallel.pipeline: 2, expert: 2: together they need a multiple of 4 ranks, here are 2; "
        "start 4 ranks, or on 2 give --set parallel.expert=1");
  CHECK(message_of([] { (void)mesh_degrees({}, 0); }) == "0 ranks; use at least 1");
  CHECK(message_of([] { (void)plan_batch({.global = 0, .micro = 4}, 2); }) ==
        "batch.global: 0, batch.micro: 4; use at least 1 for both");
  CHECK(message_of([] { (void)plan_batch({.global = 8, .micro = 2'000'000'000}, 2); }) ==
        "batch.micro: 2000000000 on 2 data ranks makes 4000000000 samples a step; use at most 4");
}

TEST_CASE("widths follow precision and optimizer", "[strategy]") {
  Recipe r;
  CHECK(state_widths(r).compute == 2);
  CHECK(state_widths(r).master == 4);
  CHECK(state_widths(r).moments == 8);
  CHECK(state_widths(r).reduce_wire == 4);
  r.precision.compute = ComputeType::fp32;
  r.precision.reduce = ReduceType::bf16;
  r.optimizer.name = OptimizerName::sgd;
  CHECK(state_widths(r).compute == 4);
  CHECK(state_widths(r).master == 0);
  CHECK(state_widths(r).moments == 4);
  CHECK(state_widths(r).reduce_wire == 2);
  r.optimizer.name = OptimizerName::lion;
  r.precision.compute = ComputeType::bf16;
  r.precision.states = StateType::fp32_split;
  CHECK(state_widths(r).moments == 4);
  CHECK(state_widths(r).master == 2);
  CHECK(state_widths(r).parameters_are_states());
  r.precision.states = StateType::bf16;
  CHECK(state_widths(r).moments == 2);
  CHECK(state_widths(r).gradient == 4);
  r.precision.gradients = GradientType::bf16;
  CHECK(state_widths(r).gradient == 2);
}

TEST_CASE("vectors have room for sums in fp32 behind gradients in bf16", "[strategy]") {
  ModelCost cost = test::small_model_cost(1);
  GroupCost& group = cost.groups.front();
  group.tensor_sizes = {1000, 300, 20, 7};
  group.leading_matrices = GENERATE(0, 2, 4);
  const int stage = GENERATE(0, 2), ranks = 2;
  Recipe r = recipe(stage, 8, 1);
  r.precision.reduce = ReduceType::bf16;
  const auto layout = [&] {
    return zero_layout(stage, Mesh(ranks, mesh_degrees(r.parallel, ranks)), cost, state_widths(r));
  };
  const Layout wide = layout();
  r.precision.gradients = GradientType::bf16;
  const Layout narrow = layout();
  const FlatGroup& flat = narrow.flat.front();
  const std::int64_t vectors =
      group.leading_matrices == 4
          ? 0
          : flat.padded() - flat.offset(static_cast<std::size_t>(group.leading_matrices));
  CHECK(wide.whole_gradient_elements(0) == flat.padded());
  CHECK(narrow.groups.front().fp32_sums == vectors);
  CHECK(narrow.whole_gradient_elements(0) == flat.padded() + 2 * vectors);
  // The memory of a gradient that collects: two bytes an element, and four for a vector's sum.
  const Strategy s = make_strategy(r, cost, ranks, cpu());
  const BufferRole role = stage == 0 ? BufferRole::gradient : BufferRole::whole_gradient;
  const std::vector<int> ids = s.training.buffers_of(role);
  CHECK(std::ranges::any_of(ids, [&](int id) {
    const Buffer& buffer = s.training.buffers[static_cast<std::size_t>(id)];
    return buffer.width == 2 && buffer.elements >= flat.padded() + 2 * vectors;
  }));
}

TEST_CASE("a strategy holds sound programs for the recipe", "[strategy][property]") {
  const int stage = GENERATE(0, 1, 2, 3), world = GENERATE(1, 2, 6, 4096);
  Recipe r = recipe(stage, 96, 8);
  r.memory.recompute = Recompute::blocks;
  r.parallel.zero.prefetch = 2;
  const ModelCost cost = test::small_model_cost(4);
  const Strategy s = make_strategy(r, cost, world, cpu());
  CAPTURE(stage, world);
  CHECK(s.mesh.world_size() == world);
  CHECK(s.batch.data_ranks == world);
  CHECK(s.training.micro_batches == s.batch.micro_batches);
  CHECK(s.evaluation.micro_batches == 1);
  CHECK(s.layout.data_ranks() == world);
  CHECK(s.training.actions == training_program(s.layout, cost,
                                               {.micro_batches = s.batch.micro_batches,
                                                .prefetch = 2,
                                                .recompute = test::recomputed(true)})
                                  .actions);
  CHECK(check(s.training, s.layout, cost).empty());
}

TEST_CASE("the GPU updates what the CPU would where its states hide behind backward and forward",
          "[strategy]") {
  const ModelCost cost = test::vit_like_model();
  Recipe r = recipe(0, 256, 256);
  r.memory.offload.optimizer = Place::pinned;
  Machine machine = h200();
  // By rates the CPU takes a half. Beside a long step all states come and go without it.
  machine.host_update_bytes_per_s = machine.host_duplex_bytes_per_s = 50e9;
  const auto streamed = [&](double slower) {
    Machine own = machine;
    own.flops_per_s /= slower;
    const Strategy s = make_strategy(r, cost, 1, own);
    CHECK(s.placement.offloaded == s.placement.elements);
    return static_cast<double>(s.placement.streamed) / static_cast<double>(s.placement.offloaded);
  };
  CHECK(streamed(1e-3) < 0.9);
  CHECK(streamed(10) == 1);
  r.memory.offload.optimizer = Place::pageable;  // which no GPU can copy by itself
  CHECK(streamed(10) == 0);
}

TEST_CASE("a chunk that divides a group into thousands is an error with one that does not",
          "[strategy]") {
  const ModelCost cost = test::vit_like_model();
  Recipe r = recipe(0, 256, 256);
  r.memory.offload.optimizer = Place::pinned;
  r.memory.offload.chunk = 128;
  try {
    (void)make_strategy(r, cost, 1, cpu());
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    const std::string hint = error.hint();
    REQUIRE(hint.starts_with("use at least "));
    r.memory.offload.chunk = std::stoi(hint.substr(13));
    CHECK(r.memory.offload.chunk % 128 == 0);
  }
  CHECK(make_strategy(r, cost, 1, cpu()).layout.chunk == r.memory.offload.chunk);
}

TEST_CASE("Muon's matrices have one moment, and are gathered in the update where they are divided",
          "[strategy]") {
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(stage);
  Recipe r = recipe(stage, 96, 8);
  ModelCost cost = test::small_model_cost(3);
  // The middle block: a stack of two matrices 20 x 30 and one of 300 x 4, then a bias.
  cost.groups[1].tensor_sizes = {1200, 1200, 7};
  cost.groups[1].hidden_tensors = 2;
  cost.groups[1].matrices = {{20, 30}, {20, 30}, {300, 4}};
  const Strategy adamw = make_strategy(r, cost, 4, cpu());
  r.optimizer.name = OptimizerName::muon;
  const Strategy muon = make_strategy(r, cost, 4, cpu());
  CHECK(muon.layout.widths.moments == 8);
  CHECK(muon.layout.matrix_rule.moments == 4);
  CHECK(hash(muon.training, muon.layout) != hash(adamw.training, adamw.layout));
  const FlatGroup& flat = muon.layout.flat[1];
  CHECK(muon.layout.groups[1].matrix_elements == flat.offset(2));
  CHECK(muon.layout.groups[0].matrix_elements == 0);

  std::vector<Bytes> gathered;
  Flops flops = 0;
  for (const Action& action : muon.training.actions) {
    if (action.kind != ActionKind::update) continue;
    gathered.push_back(action.comm.empty() ? 0 : action.comm.front().bytes);
    flops += action.flops;
  }
  CHECK(gathered == std::vector<Bytes>{0, stage > 0 ? flat.padded() * 2 : 0, 0});
  const Flops small = 5 * (4.0 * 20 * 20 * 30 + 2.0 * 20 * 20 * 20),
              tall = 5 * (4.0 * 4 * 4 * 300 + 2.0 * 4 * 4 * 4);
  // The first of four shards has parts of both stacked matrices.
  CHECK(flops == (stage > 0 ? 2 * small : 2 * small + tall));

  const auto moments = [](const Strategy& s) { return peak_memory(s.training).moments; };
  const std::int64_t matrices = flat.offset(2), rest = flat.padded() - matrices;
  const Bytes saved =
      stage == 0 ? 4 * matrices : 4 * (flat.shard_size() - std::min(flat.shard_size(), rest));
  CHECK(moments(adamw) - moments(muon) == saved);

  const Simulation step = simulate(muon.training, muon.layout, cost, cpu());
  const auto use =
      std::ranges::find(step.collectives, "momentum of matrices", &CollectiveUse::purpose);
  CHECK((use != step.collectives.end()) == (stage > 0));
  if (use != step.collectives.end()) CHECK(use->payload_bytes == flat.padded() * 2);

  r.precision.compute = ComputeType::fp32;
  CHECK(make_strategy(r, cost, 4, cpu()).layout.update_bytes(1) == 2 * muon.layout.update_bytes(1));

  Program silent = muon.training;
  for (Action& action : silent.actions) {
    for (Comm& comm : action.comm) comm.bytes += action.kind == ActionKind::update ? 2 : 0;
    if (action.kind == ActionKind::update) action.workspace += 2;
  }
  CHECK_FALSE(check(silent, muon.layout, cost).empty());
}

}  // namespace
}  // namespace dstrain
