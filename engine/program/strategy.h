#pragma once

#include <optional>

#include "engine/mesh/mesh.h"
#include "engine/mesh/split.h"
#include "engine/program/cost.h"
#include "engine/program/layout.h"
#include "engine/program/placement.h"
#include "engine/program/program.h"
#include "engine/program/recompute_choice.h"
#include "engine/recipe/recipe.h"

/// From a recipe and a world size to what the ranks do: the one derivation that `plan`, `launch
/// --dry-run`, `engine` and `verify` share.
namespace dstrain {

/// global <= data_ranks * micro * micro_batches; what is missing is filled up with samples of
/// weight 0.
struct BatchPlan {
  int global = 0;         ///< samples per optimizer step
  int data_ranks = 1;     ///< ranks that see different samples
  int micro = 0;          ///< samples of one micro-batch of one rank
  int micro_batches = 1;  ///< accumulation steps
  [[nodiscard]] int fillers() const { return data_ranks * micro * micro_batches - global; }
};

struct Strategy {
  Mesh mesh;
  Layout layout;
  BatchPlan batch;
  ProgramOptions options;
  std::optional<RecomputeChoice> recompute;  ///< where the recipe leaves it to the plan
  PlacementReport placement;
  std::optional<ScheduleName> schedule = {};  ///< of a pipeline
  std::vector<Program> line;  ///< one optimizer step of each coordinate of the pipeline
  Program training;           ///< that of this rank
  Program evaluation;         ///< one micro-batch
  Program gathering;          ///< before the first evaluation after an update
  /// Hash of these programs on all coordinates of the pipeline, the same on every rank.
  std::uint64_t hash = 0;
};

/// Degrees of all axes: the data ranks are what the other axes leave of the world; under ZeRO they
/// lie on the shard axis
/// (`parallel.zero.shard` of them, all by default) and beside it on the data axis, without ZeRO all
/// on the data axis. Error{usage} names the key, both numbers and the values that would do.
[[nodiscard]] Degrees mesh_degrees(const ParallelConfig& parallel, int world_size);

/// The parts of the model and of each sample that `rank` has; the mesh is of `parallel`.
[[nodiscard]] Splits splits_of(const ParallelConfig& parallel, const Mesh& mesh, int rank);

/// Bytes per element of parameters, gradients and states under the recipe's precision and
/// optimizer.
[[nodiscard]] StateWidths state_widths(const Recipe& recipe);

/// The rule of the recipe's optimizer for matrices.
[[nodiscard]] MatrixRule matrix_rule(const Recipe& recipe);

/// What the recipe asks of ZeRO++. Error{usage} where `parallel.zero.second_shard` does not divide
/// the shard axis.
[[nodiscard]] Wires wires_of(const Recipe& recipe, int shard_degree);

/// The layout's peer ranks: those of a node that copy into each other's memory, 1 where none may.
[[nodiscard]] int peer_ranks(const Recipe& recipe, const Machine& machine);

/// micro_batches = ceil(ceil(global / data_ranks) / micro). Error{usage} when global or micro is
/// below 1.
[[nodiscard]] BatchPlan plan_batch(const BatchConfig& batch, int data_ranks);

/// useful_flops of its line, without those that fillers take.
[[nodiscard]] Flops useful_flops(const Strategy& strategy);

/// `cost` is that of a micro-batch of recipe.batch.micro samples in the recipe's compute type
/// (compute width of state_widths). `machine` says what a rank may hold, which matters under
/// memory.recompute: auto only, and must then be the same on all ranks. The programs are those of
/// `rank`; those of its whole pipeline line pass `check`, or it is Error{internal}.
[[nodiscard]] Strategy make_strategy(const Recipe& recipe, const ModelCost& cost, int world_size,
                                     const Machine& machine, int rank = 0);

}  // namespace dstrain
