#pragma once

#include <string>
#include <vector>

#include "engine/bench/bench_results.h"
#include "engine/bench/tables.h"

namespace dstrain::bench {

enum class TableSet {
  seeds,  ///< losses and rates; GPU memory; pinned memory; by configuration; scaling; stages and
          ///< offload; what offload saves and costs; strategies
  full    ///< and speeds with their intervals and verdicts, MFU, planned memory, communication
};

[[nodiscard]] BenchTables bench_tables(const BenchPlan& plan,
                                       const std::vector<CaseResult>& results, TableSet set);

/// Tables and failures, for the terminal or as Markdown.
[[nodiscard]] report::Document bench_document(const BenchTables& tables,
                                              const std::vector<CaseResult>& results);

}  // namespace dstrain::bench
