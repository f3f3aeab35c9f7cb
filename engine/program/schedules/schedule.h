#pragma once

#include <vector>

#include "engine/program/stages.h"
#include "engine/recipe/recipe.h"

/// Orders in which the ranks of a pipeline run their chunks.
namespace dstrain {

enum class Pass {
  forward,
  backward,  ///< input and weight at once
  input,     ///< gradients of the inputs, and of weights that are no matrices
  weight,    ///< gradients of the matrices
};

/// One stay of a rank in a chunk.
struct ChunkVisit {
  Pass pass = Pass::forward;
  int chunk = 0;
  int micro_batch = 0;
  bool operator==(const ChunkVisit&) const = default;
};

/// Per pipeline coordinate, in the order in which the rank runs them. A chunk runs its forwards in
/// the order of the micro-batches, and so its backwards and its weight gradients.
using PipelineSchedule = std::vector<std::vector<ChunkVisit>>;

/// What a visit of a chunk takes and holds, in any unit of time and of memory.
struct ChunkCost {
  double forward = 1;
  double input = 1;   ///< of a joined backward: both
  double weight = 1;  ///< 0: the backward is not split
  double held = 1;    ///< memory from forward to the gradients of the inputs
  double later = 1;   ///< of it, until the gradients of the weights

  [[nodiscard]] double all() const { return forward + input + weight; }
};

/// Cost of a line of pipeline ranks.
struct LineCost {
  std::vector<ChunkCost> chunks;
  double transfer = 0;         ///< from a rank to another one
  std::vector<double> limits;  ///< memory of each rank; empty: none
};
/// Chunks of equal cost, whose backward is split or not.
[[nodiscard]] LineCost equal_costs(const Stages& stages, bool split = true);

/// All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965, sec. 2.3). One chunk per
/// rank, in rank order.
[[nodiscard]] PipelineSchedule gpipe(const Stages& stages, int micro_batches);
/// As many forwards as ranks follow, then forward and backward in turn (Narayanan et al. 2021,
/// arXiv:2104.04473, sec. 2.2). One chunk per rank, in rank order. With one rank: one micro-batch
/// after the other.
[[nodiscard]] PipelineSchedule one_f_one_b(const Stages& stages, int micro_batches);
/// 1F1B over several chunks in a loop (the same, sec. 2.2). Micro-batches go in groups of as many
/// as there are ranks; the last group may have fewer.
[[nodiscard]] PipelineSchedule interleaved(const Stages& stages, int micro_batches);
/// Lists visit after visit of whichever rank can begin first: gradients of inputs before forwards,
/// and gradients of weights where a rank would wait (Qi et al. 2024, arXiv:2401.10241 and
/// 2405.15362). A forward begins where the rank's limit leaves room for it and for one visit of
/// each of its later chunks; a limit below what one micro-batch needs is raised to that. Any
/// stages.
[[nodiscard]] PipelineSchedule zero_bubble(const Stages& stages, int micro_batches,
                                           const LineCost& cost);
/// Two chunks per rank in a V, the forward of one beside the backward of the other (DeepSeek-AI
/// 2024, arXiv:2412.19437, sec. 3.2.1, cut in half); a pair runs in turn here.
[[nodiscard]] PipelineSchedule dual_pipe_v(const Stages& stages, int micro_batches);
/// Forwards only, for evaluation; any stages.
[[nodiscard]] PipelineSchedule forwards(const Stages& stages, int micro_batches);

/// The schedule of that name; not `automatic`. Error{internal} with stages that it has no order
/// for.
[[nodiscard]] PipelineSchedule make_schedule(ScheduleName name, const Stages& stages,
                                             int micro_batches, const LineCost& cost);

}  // namespace dstrain
