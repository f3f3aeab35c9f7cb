#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/bench/bench_log.h"
#include "engine/report/compare.h"

namespace dstrain::bench {

using report::kUnknown;

/// Figures of a case, medians of its repeats that ended well; kUnknown where none has one.
struct CaseResult {
  Case which;
  std::string recipe;
  std::string variant;
  std::string model = {};  ///< of the plan
  std::string data = {};   ///< data.name of the recipe
  std::string device = {};
  std::size_t runs = 0;
  std::string failure = {};                    ///< why a repeat failed; empty: none did
  report::Figures figures = {};                ///< step_s: of the first repeat, with its interval
  std::vector<double> evaluation_losses = {};  ///< in order of time
  /// Beside the first variant of the same recipe and ranks.
  report::Estimate speed = {.value = kUnknown};
  std::string verdict = {};

  [[nodiscard]] double value(report::FigureKey key) const { return figures.value(key); }
};

/// Repeats of a case that ended well.
struct CaseRuns {
  std::vector<report::RunFigures> runs;
  std::string failure = {};  ///< why a repeat failed; empty: none did
};
/// Reads a case; `count` leaves in a run the steps that count.
[[nodiscard]] CaseRuns read_case(const BenchPlan& plan, const BenchLog& log, std::size_t index,
                                 const std::function<void(report::RunData&)>& count);
/// Names of a case of `plan`, without figures.
[[nodiscard]] CaseResult named_result(const BenchPlan& plan, std::size_t index);
/// Takes what `plan`, the JSON of `dstrain plan`, says of a case.
void add_planned(CaseResult& result, const nlohmann::json& plan);

/// Results of all cases, those without a run included.
[[nodiscard]] std::vector<CaseResult> bench_results(const BenchPlan& plan, const BenchLog& log);

[[nodiscard]] nlohmann::ordered_json results_json(const std::vector<CaseResult>& results);

}  // namespace dstrain::bench
