#pragma once

#include <vector>

#include "engine/bench/tables.h"

namespace dstrain::bench {

enum class TableSet {
  seeds,  ///< losses and rates; GPU memory; pinned memory; by configuration; scaling; stages and
          ///< offload; what offload saves and costs; strategies
  full    ///< and speeds with their intervals and verdicts, MFU, planned memory, communication
};

[[nodiscard]] BenchTables run_tables(const std::vector<CaseResult>& results, TableSet set);

/// An object for each case: what `bench run` and `bench zero` tell of it.
[[nodiscard]] nlohmann::ordered_json results_json(const std::vector<CaseResult>& results);

/// tables.md, a CSV file for each table, results.json.
[[nodiscard]] BenchPages run_pages(const std::vector<CaseResult>& results, TableSet set);

}  // namespace dstrain::bench
