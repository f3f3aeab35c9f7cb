#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/bench/bench_log.h"
#include "engine/bench/parallel_plan.h"
#include "engine/report/figures.h"

namespace dstrain::bench {

using report::kUnknown;

/// Where the compute lane of a rank stood still, seconds of a step. Disjoint.
struct ExposedTime {
  double gather = kUnknown;  ///< of parameters
  double reduce = kUnknown;  ///< of gradients
  double stages = kUnknown;  ///< receives from other stages, and sends whose buffer is needed
  double norm = kUnknown;    ///< the sum over all ranks before the update
  double input = kUnknown;   ///< samples
  /// Collectives inside blocks, of tensor, sequence and expert ranks; a part of forward and
  /// backward. kUnknown where the trace has none, as on CPUs.
  double blocks = kUnknown;
};

/// A coordinate of a pipeline; of the one stage where there is no pipeline.
struct StageFigures {
  int stage = 0;
  std::string blocks = {};  ///< of each chunk: "9, 10"
  double peak = kUnknown;   ///< bytes that its busiest rank allocated
  double planned = kUnknown;
  double bubble = kUnknown;  ///< share of a step, mean of its ranks
  double planned_bubble = kUnknown;
};

/// Collectives of one kind on a rank of the stage that holds most, per step.
struct CollectiveFigures {
  std::string operation;  ///< "all_gather"
  std::string purpose;    ///< as the plan calls it
  double calls = kUnknown;
  double planned_calls = kUnknown;
  double bytes = kUnknown;
  double planned_bytes = kUnknown;
  double bus_rate = kUnknown;  ///< bytes per second as nccl-tests; kUnknown for sends and receives
};

/// A way with what its plan says and what its median run measured; kUnknown where one is missing.
struct ParallelResult {
  ParallelWay way = {};
  std::string recipe;        ///< its name
  std::size_t runs = 0;      ///< repeats that ended well
  std::string failure = {};  ///< why there are none, or why a repeat failed
  std::string device = {};
  // Of the plan.
  std::string layout = {};  ///< "pipeline 2 x data 2, ZeRO 1"
  std::string schedule = {};
  double micro = kUnknown;
  double micro_batches = kUnknown;
  double planned_step_s = kUnknown;
  double planned_lone_step_s = kUnknown;
  double planned_bubble = kUnknown;  ///< share of a step, mean of the stages
  double planned_memory = kUnknown;  ///< bytes that the fullest rank allocates
  // Measured.
  double step_s = kUnknown;
  double tokens_per_s = kUnknown;   ///< of all ranks
  double samples_per_s = kUnknown;  ///< of all ranks
  double mfu = kUnknown;
  double loss = kUnknown;
  double bubble = kUnknown;  ///< ExposedTime::stages and norm, share of a step; of a pipeline
  double memory = kUnknown;  ///< bytes that the fullest rank allocated
  // Of the compute lane in the traced steps, seconds of a step, mean of the ranks, without waits.
  double forward_s = kUnknown;
  double backward_s = kUnknown;  ///< with recomputation, without the part that comes later
  double weight_s = kUnknown;    ///< gradients of matrices that come later; 0: they do not
  double optimizer_s = kUnknown;
  ExposedTime exposed = {};
  double lone_step_s = kUnknown;  ///< of a step without gathers and reductions, where it has some
  std::vector<StageFigures> stages = {};
  std::vector<CollectiveFigures> collectives = {};
  // Rate of a rank beside that on the fewest ranks that ran, of the same recipe.
  double weak_efficiency = kUnknown;
  double strong_efficiency = kUnknown;

  [[nodiscard]] double rank_rate() const;  ///< tokens, else samples, per second and rank
  /// What gathers and reductions of groups make a step longer, and what of it is no wait: kernels
  /// beside them are slower.
  [[nodiscard]] double exchange_s() const { return step_s - lone_step_s; }
  [[nodiscard]] double planned_exchange_s() const { return planned_step_s - planned_lone_step_s; }
  [[nodiscard]] double contention_s() const {
    return exchange_s() - exposed.gather - exposed.reduce;
  }
};

/// Takes what `plan`, the JSON of `dstrain plan`, says of a way.
void add_plan(ParallelResult& result, const nlohmann::json& plan);
/// Takes what a run measured in the `steps` steps behind its warm-up, and in its traced ones.
void add_run(ParallelResult& result, const report::RunFigures& run, int steps);

/// Of all ways of `plan`, in their order, with plan and figures of those that ran.
[[nodiscard]] std::vector<ParallelResult> parallel_results(const ParallelOptions& options,
                                                           const std::vector<ParallelWay>& ways,
                                                           const BenchPlan& plan,
                                                           const BenchLog& log);

}  // namespace dstrain::bench
