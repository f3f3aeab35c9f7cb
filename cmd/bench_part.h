#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "cmd/bench_cell.h"
#include "cmd/bench_runner.h"
#include "engine/bench/bench_results.h"
#include "engine/bench/tables.h"

namespace dstrain {

/// Runs of a plan in its folder. What does not fit this machine is left out, and a run that has
/// ended is kept.
class BenchPart {
 public:
  /// `retry`: runs that failed are made again.
  BenchPart(bench::BenchPlan plan, const std::filesystem::path& folder, bool retry);

  /// Whether all runs have ended.
  bool run_all(BenchInterrupts& interrupts) { return runner_.run_all(interrupts); }
  [[nodiscard]] const bench::BenchPlan& plan() const { return plan_; }
  [[nodiscard]] const bench::BenchLog& log() const { return log_; }
  /// What is known of a case without a run. Its reason is taken over by `result`.
  const nlohmann::json& plan_of(std::size_t index, bench::CaseResult& result);
  [[nodiscard]] std::filesystem::path first_run(std::size_t index) const {
    return log_.runs() / bench::run_name(plan_, {.index = index});
  }

 private:
  const CellPlan& planned(std::size_t index);

  bench::BenchPlan plan_;
  bench::BenchLog log_;
  std::map<std::size_t, CellPlan> planned_;
  BenchRunner runner_;
};

/// Error{usage} where a list of options, `what`, names one of its values twice.
void require_different(std::size_t values, std::size_t different, const char* what);
template <class Values>
void require_once(const Values& values, const char* what) {
  const std::set<typename Values::value_type> seen(values.begin(), values.end());
  require_different(values.size(), seen.size(), what);
}

/// Writes NAME.md, NAME.csv and NAME.json, and prints the document. `beside`: further files there.
void write_bench(const std::filesystem::path& folder, const std::string& name,
                 const report::Document& document, const std::string& csv,
                 const nlohmann::ordered_json& json, const std::string& beside = "");

}  // namespace dstrain
