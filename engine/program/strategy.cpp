#include "engine/program/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/simulate.h"
#include "engine/program/stage_plan.h"
#include "engine/recipe/axes.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/optimizers.h"

namespace dstrain {
namespace {

std::string divisors(int number) {
  std::vector<int> list;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) list.push_back(d);
  }
  return fmt::format("{}", fmt::join(list, ", "));
}

/// Per element.
int moment_bytes(const Recipe& recipe) {
  return recipe.precision.states == StateType::bf16 ? 2 : 4;
}
int moment_bytes(const Recipe& recipe, OptimizerName name) {
  return static_cast<int>(optimizer_row(name).moments.size()) * moment_bytes(recipe);
}

/// What the coordinates choose for their blocks, with the memory of the fullest. Outputs of
/// activation functions are kept where that fits everywhere.
RecomputeChoice choose_on_all(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
                              const ProgramOptions& options, const Machine& machine) {
  RecomputeChoice all{.blocks = std::vector<bool>(cost.blocks.size()),
                      .keep_hidden = options.keep_hidden};
  for (int c = 0; c < layout.pipeline_degree(); ++c) {
    const Program plain = training_program(layout, cost, options, c);
    const RecomputeChoice own = choose_recompute(
        layout, cost, options, memory_limit(recipe, plain, layout, cost, machine), c);
    for (std::size_t b = 0; b < own.blocks.size(); ++b)
      all.blocks[b] = all.blocks[b] || own.blocks[b];
    all.keep_hidden = all.keep_hidden && own.keep_hidden;
    all.limit = own.limit;
    all.needed = std::max(all.needed, own.needed);
    all.needed_without = std::max(all.needed_without, own.needed_without);
  }
  if (all.keep_hidden == options.keep_hidden) return all;
  ProgramOptions others = options;
  others.keep_hidden = false;
  return choose_on_all(recipe, layout, cost, others, machine);
}

bool has_hidden(const ModelCost& cost) {
  return std::ranges::any_of(cost.blocks,
                             [](const BlockCost& block) { return block.hidden_bytes > 0; });
}

void at_least_a_block_per_rank(const ModelCost& cost, int pipeline) {
  const int blocks = static_cast<int>(cost.blocks.size());
  if (pipeline <= blocks) return;
  throw Error(ErrorKind::usage,
              fmt::format("parallel.pipeline: {} stages, and the model has {} blocks (embedding "
                          "and head are two of them)",
                          pipeline, blocks),
              fmt::format("use at most {}", blocks));
}

/// An optimizer of whole matrices needs each of them on one rank.
void require_whole_matrices(const Layout& layout, const ModelCost& cost) {
  if (layout.matrix_rule.iterations == 0) return;
  for (const GroupCost& group : cost.groups) {
    if (group.cut != Cut::tensor || group.hidden_tensors == 0) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("optimizer.name: muon updates whole matrices, and with parallel.tensor: "
                    "{} each rank has a part of those of {}",
                    layout.degrees.tensor, group.name),
        "use parallel.tensor: 1, or another optimizer");
  }
}

/// The axes that cut the model share the ranks with the data axis, which takes what they leave.
void require_axes_that_fit(const ParallelConfig& parallel, int world_size) {
  const Degrees degrees = given_degrees(parallel);
  // The degrees that would fit: each that the ranks have room for, in this order.
  std::int64_t kept = 1;
  std::vector<std::string> given, to_one;
  for (const AxisKey& key : kAxisKeys) {
    const char* name = axis_name(key.axis);
    const std::int64_t degree = degrees[key.axis];
    if (degree < 1) {
      throw Error(ErrorKind::usage, fmt::format("parallel.{}: {}", name, degree), "use at least 1");
    }
    if (degree == 1) continue;
    given.push_back(fmt::format("{}: {}", name, degree));
    if (world_size % (kept * degree) == 0)
      kept *= degree;
    else
      to_one.push_back(fmt::format("--set parallel.{}=1", name));
  }
  const std::int64_t needed = product(degrees, kAllAxes);
  if (world_size % needed == 0) return;
  if (given.size() == 1) {
    throw Error(ErrorKind::usage,
                fmt::format("parallel.{} does not divide the {} ranks", given.front(), world_size),
                fmt::format("use {}, or a multiple of {} ranks", divisors(world_size), needed));
  }
  throw Error(
      ErrorKind::usage,
      fmt::format("parallel.{}: together they need a multiple of {} ranks, here {} {}",
                  fmt::join(given, ", "), needed, world_size == 1 ? "is" : "are", world_size),
      fmt::format("start {} ranks, or on {} give {}", needed, world_size, fmt::join(to_one, " ")));
}

/// The programs of one kind on all coordinates of the pipeline, checked.
template <typename Make>
std::vector<Program> make_line(const Layout& layout, const ModelCost& cost, const Make& make) {
  std::vector<Program> line;
  for (int c = 0; c < layout.pipeline_degree(); ++c) line.push_back(make(c));
  const std::vector<std::string> problems = check(line, layout, cost);
  DSTRAIN_CHECK(problems.empty(), problems.front());
  return line;
}

/// What is another where the CPU updates other offloaded states.
struct Training {
  Layout layout;
  ProgramOptions options;
  PlacementReport placement;
  std::optional<RecomputeChoice> recompute = {};
  std::vector<Program> line = {};
  double step_s = 0;  ///< planned
};

/// A longer program is worth a hundredth of a step.
bool shorter(double step_s, double than_s) { return 1.01 * step_s < than_s; }

/// Puts what shortens steps with streamed states by a plan into `training`, whose program is made
/// without it. Not where the CPU updates some groups: link and CPU are balanced for a step without
/// it (BLOOM-560m on one H200 took 202 ms with transient slots, planned 177, and 198 without).
void shorten_streams(Training& training, const ModelCost& cost, const Machine& machine) {
  ProgramOptions tried = training.options;
  tried.transient_slots = true;
  for (const bool park : {false, true}) {
    tried.park_state = park;
    std::vector<Program> line = make_line(training.layout, cost, [&](int c) {
      return training_program(training.layout, cost, tried, c);
    });
    const double step_s = longest_step(simulate(line, training.layout, cost, machine));
    if (!shorter(step_s, training.step_s)) continue;
    training.step_s = step_s;
    training.options = tried;
    training.line = std::move(line);
  }
}

/// The training step under a layout whose states are yet to be placed.
Training make_training(const Recipe& recipe, Layout layout, const ModelCost& cost,
                       ProgramOptions options, const Machine& machine) {
  const PlacementReport placement = place_states(layout, cost, recipe, options, machine);
  Training training{
      .layout = std::move(layout), .options = std::move(options), .placement = placement};
  if (recipe.memory.recompute == Recompute::automatic) {
    training.options.keep_hidden = has_hidden(cost);
    training.recompute = choose_on_all(recipe, training.layout, cost, training.options, machine);
    training.options.recompute = training.recompute->blocks;
    training.options.keep_hidden = training.recompute->keep_hidden;
  }
  training.line = make_line(training.layout, cost, [&](int c) {
    return training_program(training.layout, cost, training.options, c);
  });
  if (placement.offloaded == 0) return training;
  training.step_s = longest_step(simulate(training.line, training.layout, cost, machine));
  if (placement.streamed == placement.offloaded) shorten_streams(training, cost, machine);
  return training;
}

/// Under `update: auto` the device updates what the CPU would where that step is shorter: only then
/// states come and go beside backward and forward.
Training best_training(const Recipe& recipe, const Layout& layout, const ModelCost& cost,
                       const ProgramOptions& options, const Machine& machine) {
  Training shared = make_training(recipe, layout, cost, options, machine);
  const OffloadConfig& offload = recipe.memory.offload;
  const bool direct = access_of(offload.optimizer) == Access::direct &&
                      access_of(offload.parameters) == Access::direct;
  if (offload.update != OffloadUpdate::automatic || !direct || machine.shares_memory ||
      shared.placement.streamed == shared.placement.offloaded)
    return shared;
  Recipe by_device = recipe;
  by_device.memory.offload.update = OffloadUpdate::gpu;
  Training streamed = make_training(by_device, layout, cost, options, machine);
  return shorter(streamed.step_s, shared.step_s) ? std::move(streamed) : std::move(shared);
}

/// Memory of a lane of the JPEG units: with photographs of 500 x 375 pixels on an H200, 2026-11-26.
constexpr Bytes kJpegLane = Bytes{48} << 20;

}  // namespace

Degrees mesh_degrees(const ParallelConfig& parallel, int world_size) {
  if (world_size < 1) {
    throw Error(ErrorKind::usage, fmt::format("{} ranks", world_size), "use at least 1");
  }
  require_axes_that_fit(parallel, world_size);
  Degrees degrees = given_degrees(parallel);
  const int data_ranks = static_cast<int>(world_size / ranks_per_sample(parallel));
  const ZeroConfig& zero = parallel.zero;
  degrees.data = data_ranks / parallel.expert;
  if (zero.stage == 0) return degrees;
  const int shard = zero.shard == 0 ? data_ranks : zero.shard;
  if (shard < 1 || data_ranks % shard != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("parallel.zero.shard: {} does not divide the {} data ranks", zero.shard,
                            data_ranks),
                fmt::format("use {}, or 0 for all of them", divisors(data_ranks)));
  }
  if (shard % parallel.expert != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("parallel.zero.shard: {} data ranks share a copy of the states, which "
                            "parallel.expert: {} does not divide",
                            shard, parallel.expert),
                "use a multiple of it, or 0 for all data ranks");
  }
  degrees.data = data_ranks / shard;
  degrees.shard = shard / parallel.expert;
  return degrees;
}

Splits splits_of(const ParallelConfig& parallel, const Mesh& mesh, int rank) {
  Splits splits = splits_at(mesh, rank);
  if (parallel.sequence_attention == SequenceAttention::heads)
    splits.exchange = SequenceExchange::heads;
  return splits;
}

StateWidths state_widths(const Recipe& recipe) {
  const OptimizerRow& row = optimizer_row(recipe.optimizer.name);
  const bool fp32 = recipe.precision.compute == ComputeType::fp32;
  const bool fp32_apart = !fp32 && recipe.precision.states == StateType::fp32;
  const bool split = !fp32 && recipe.precision.states == StateType::fp32_split;
  return {
      .compute = fp32 ? 4 : 2,
      .gradient = recipe.precision.gradients == GradientType::bf16 ? 2 : 4,
      .master = fp32_apart ? 4
                : split    ? 2
                           : 0,
      .moments = moment_bytes(recipe, row.others.value_or(row.name)),
      .moment = moment_bytes(recipe),
      .average = recipe.ema.decay > 0 ? 4 : 0,
      .reduce_wire = recipe.precision.reduce == ReduceType::bf16 ? 2 : 4,
  };
}

MatrixRule matrix_rule(const Recipe& recipe) {
  if (!optimizer_row(recipe.optimizer.name).others) return {};
  return {.iterations = recipe.optimizer.ns_steps,
          .moments = moment_bytes(recipe, recipe.optimizer.name),
          .direction = recipe.precision.compute == ComputeType::fp32 ? 4 : 2};
}

Wires wires_of(const Recipe& recipe, int shard_degree) {
  Wires wires = {.second_degree = std::max(recipe.parallel.zero.second_shard, 1)};
  if (shard_degree % wires.second_degree != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("parallel.zero.second_shard: {} does not divide the {} ranks that "
                            "share one copy of the states",
                            wires.second_degree, shard_degree),
                fmt::format("use {}, or 0 for none", divisors(shard_degree)));
  }
  switch (recipe.precision.gather) {
    case GatherType::compute:
      break;
    case GatherType::int8:
      wires.gather = CodeFormat::int8;
      break;
    case GatherType::fp8:
      wires.gather = CodeFormat::fp8;
      break;
    case GatherType::int4:
      wires.gather = CodeFormat::int4;
      break;
  }
  if (recipe.precision.reduce == ReduceType::int8) wires.reduce = CodeFormat::int8;
  if (recipe.precision.reduce == ReduceType::int4) wires.reduce = CodeFormat::int4;
  return wires;
}

int peer_ranks(const Recipe& recipe, const Machine& machine) {
  return recipe.parallel.peer_copies && machine.peer_copies ? machine.ranks_per_node : 1;
}

BatchPlan plan_batch(const BatchConfig& batch, int data_ranks) {
  if (batch.global < 1 || batch.micro < 1) {
    throw Error(ErrorKind::usage,
                fmt::format("batch.global: {}, batch.micro: {}", batch.global, batch.micro),
                "use at least 1 for both");
  }
  const std::int64_t per_rank = ceil_div(batch.global, data_ranks);
  const std::int64_t micro_batches = ceil_div(per_rank, batch.micro);
  const std::int64_t places = micro_batches * batch.micro * data_ranks;
  if (places > std::numeric_limits<int>::max()) {
    throw Error(ErrorKind::usage,
                fmt::format("batch.micro: {} on {} data ranks makes {} samples a step", batch.micro,
                            data_ranks, places),
                fmt::format("use at most {}", per_rank));
  }
  constexpr std::int64_t kMaxMicroBatches = 65536;  // a program lists the actions of each
  if (micro_batches > kMaxMicroBatches) {
    throw Error(
        ErrorKind::usage,
        fmt::format(
            "batch.micro: {} makes {} accumulation steps of {} samples per rank, more than {}",
            batch.micro, micro_batches, per_rank, kMaxMicroBatches),
        fmt::format("use batch.micro: {} or more", ceil_div(per_rank, kMaxMicroBatches)));
  }
  return {.global = batch.global,
          .data_ranks = data_ranks,
          .micro = batch.micro,
          .micro_batches = static_cast<int>(micro_batches)};
}

Flops useful_flops(const Strategy& strategy) {
  const BatchPlan& batch = strategy.batch;
  const double filled = static_cast<double>(batch.global) / (batch.global + batch.fillers());
  return useful_flops(strategy.line) * filled;
}

namespace {

/// The strategy with the schedule that the recipe names, or with the one that ends first.
Strategy strategy_of(const Recipe& recipe, const ModelCost& cost, int world_size,
                     const Machine& machine, int rank) {
  Mesh mesh(world_size, mesh_degrees(recipe.parallel, world_size));
  at_least_a_block_per_rank(cost, mesh.degree(Axis::pipeline));
  Layout layout = zero_layout(recipe.parallel.zero.stage, mesh, cost, state_widths(recipe),
                              matrix_rule(recipe));
  require_whole_matrices(layout, cost);
  set_wires(layout, cost, wires_of(recipe, layout.degrees.shard));
  layout.peer_ranks = peer_ranks(recipe, machine);
  const BatchPlan batch = plan_batch(recipe.batch, mesh.degree(kDataAxes));
  ProgramOptions options = {.micro_batches = batch.micro_batches,
                            .prefetch = recipe.parallel.zero.prefetch};
  options.two_at_once = recipe.batch.concurrent == 2;
  options.peer_copies = recipe.parallel.peer_copies;
  options.input_memory = jpeg_lanes(recipe.data) * kJpegLane;
  options.inputs = recipe.memory.offload.activations;
  if (recipe.memory.recompute == Recompute::blocks)
    options.recompute.assign(cost.blocks.size(), true);
  std::optional<StagePlan> stages;
  if (mesh.degree(Axis::pipeline) > 1) {
    stages = plan_stages(recipe, layout, cost, options, machine);
    set_stages(layout, cost, stages->cut.stages);
    options.schedule = stages->cut.visits;
  }
  Training training = best_training(recipe, layout, cost, options, machine);
  layout = std::move(training.layout);
  options = std::move(training.options);
  auto evaluation =
      make_line(layout, cost, [&](int c) { return evaluation_program(layout, cost, options, c); });
  auto gathering =
      make_line(layout, cost, [&](int c) { return gathering_program(layout, cost, c); });
  std::uint64_t combined = 0;
  for (const auto* line : {&training.line, &evaluation, &gathering})
    combined = combined * 0x9E3779B97F4A7C15ULL + hash(*line, layout);
  const std::size_t own = to_index(mesh.coordinate(rank, Axis::pipeline));
  return {.mesh = mesh,
          .layout = std::move(layout),
          .batch = batch,
          .options = options,
          .recompute = std::move(training.recompute),
          .placement = training.placement,
          .schedule = stages ? std::optional(stages->schedule) : std::nullopt,
          .line = training.line,
          .training = training.line[own],
          .evaluation = std::move(evaluation[own]),
          .gathering = std::move(gathering[own]),
          .hash = combined};
}

/// Whether every stage fits the memory of its ranks, where that is known.
bool stages_fit(const Strategy& strategy, const Recipe& recipe, const ModelCost& cost,
                const Machine& machine) {
  return std::ranges::all_of(strategy.line, [&](const Program& program) {
    const MemoryLimit limit = memory_limit(recipe, program, strategy.layout, cost, machine);
    return limit.bytes == 0 || peak_memory(program).total() + limit.fixed <= limit.bytes;
  });
}

}  // namespace

Strategy make_strategy(const Recipe& recipe, const ModelCost& cost, int world_size,
                       const Machine& host, int rank) {
  // Ranks of hosts with other cores choose alike.
  Machine machine = host;
  machine.cores = 0;
  machine.threads = 1;
  Strategy strategy = strategy_of(recipe, cost, world_size, machine, rank);
  const StagesConfig& stages = recipe.parallel.stages;
  const bool open = stages.schedule == ScheduleName::automatic && stages.chunks == 0 &&
                    stages.layers.empty() && strategy.schedule &&
                    strategy.schedule != ScheduleName::one_f_one_b;
  if (!open || stages_fit(strategy, recipe, cost, machine)) return strategy;
  // Schedules are chosen by estimates of their memory. 1F1B holds the least.
  Recipe plain = recipe;
  plain.parallel.stages.schedule = ScheduleName::one_f_one_b;
  Strategy lean = strategy_of(plain, cost, world_size, machine, rank);
  return stages_fit(lean, recipe, cost, machine) ? std::move(lean) : std::move(strategy);
}

}  // namespace dstrain
