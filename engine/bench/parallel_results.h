#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/bench/bench_results.h"
#include "engine/bench/parallel_plan.h"

namespace dstrain::bench {

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
  CaseResult result;
  ParallelWay way = {};
  std::string layout = {};  ///< of the plan: "pipeline 2 x data 2, ZeRO 1"
  std::string schedule = {};
  std::vector<StageFigures> stages = {};
  std::vector<CollectiveFigures> collectives = {};

  [[nodiscard]] bool ran() const { return result.runs > 0; }
  [[nodiscard]] double value(report::FigureKey key) const { return result.value(key); }
};

/// Takes what `plan`, the JSON of `dstrain plan`, says of a way.
void add_plan(ParallelResult& result, const nlohmann::json& plan);
/// Takes what a run measured in the `steps` steps behind its warm-up, and in its traced ones.
/// `lone_step_s`: of its steps without exchanges.
void add_run(ParallelResult& result, const report::RunFigures& run, int steps,
             double lone_step_s = kUnknown);

/// Results of all ways of `plan`, in their order, with plan and figures of those that ran.
[[nodiscard]] std::vector<ParallelResult> parallel_results(const ParallelOptions& options,
                                                           const std::vector<ParallelWay>& ways,
                                                           const BenchPlan& plan,
                                                           const BenchLog& log);

}  // namespace dstrain::bench
