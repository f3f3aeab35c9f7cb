#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/bench/bench_log.h"
#include "engine/report/compare.h"

namespace dstrain::bench {

using report::kUnknown;

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

/// Figures of a case, medians of its repeats that ended well; without one those of its plan, and
/// kUnknown where that has none.
struct CaseResult {
  Case which = {};
  std::string recipe = {};  ///< its name
  std::string model = {};   ///< of the plan
  std::string data = {};    ///< data.name of the recipe
  std::string device = {};
  nlohmann::json plan = {};  ///< as `dstrain plan --json`: of its first run, else of this machine
  std::size_t runs = 0;
  std::string failure = {};                    ///< why a repeat failed or none ran; empty: none did
  report::Figures figures = {};                ///< step_s: of the first repeat, with its interval
  std::vector<double> evaluation_losses = {};  ///< in order of time
  /// Beside the first case of the same recipe and ranks.
  report::Estimate speed = {.value = kUnknown};
  std::string verdict = {};
  // Filled by add_layouts().
  std::string layout = {};  ///< of the plan: "pipeline 2 x data 2, ZeRO 1"
  std::string schedule = {};
  std::vector<StageFigures> stages = {};
  std::vector<CollectiveFigures> collectives = {};

  [[nodiscard]] bool ran() const { return runs > 0; }
  [[nodiscard]] double value(report::FigureKey key) const { return figures.value(key); }
};

/// What is known of a case without a run.
struct CellPlan {
  nlohmann::json plan = {};  ///< as `dstrain plan --json`; null where there is none
  std::string refusal = {};  ///< why it cannot run on this machine; empty: it can
};

/// Takes it for a case that has no run.
void add_planned(CaseResult& result, const CellPlan& planned);

struct BenchResults {
  std::vector<CaseResult> cases;         ///< in the order of BenchPlan::cases
  std::vector<report::RunFigures> runs;  ///< that ended well, in that order

  /// Those of a case, in `runs`.
  [[nodiscard]] std::vector<std::size_t> runs_of(std::size_t index) const;
};

/// Results of all cases, those without a run included; `planned` tells of these.
[[nodiscard]] BenchResults bench_results(
    const BenchPlan& plan, const BenchLog& log,
    const std::function<CellPlan(std::size_t index)>& planned = {});

}  // namespace dstrain::bench
