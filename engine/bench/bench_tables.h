#pragma once

#include <string>
#include <vector>

#include "engine/bench/bench_results.h"
#include "engine/report/document.h"

namespace dstrain::bench {

/// A table of a bench.
struct BenchTable {
  std::string file;  ///< "1-training": of its CSV
  std::string title;
  report::Table table;
};

enum class TableSet {
  seeds,  ///< losses and rates; GPU memory; pinned memory; by configuration; scaling; stages and
          ///< offload; what offload saves and costs; strategies
  full    ///< and speeds with their intervals and verdicts, MFU, planned memory, communication
};

struct BenchTables {
  std::vector<BenchTable> tables;
  std::vector<std::string> left_out;  ///< "Pinned memory: ...", with the reason
};
[[nodiscard]] BenchTables bench_tables(const BenchPlan& plan,
                                       const std::vector<CaseResult>& results, TableSet set);

/// Tables and failures, for the terminal or as Markdown.
[[nodiscard]] report::Document bench_document(const BenchTables& tables,
                                              const std::vector<CaseResult>& results);
[[nodiscard]] std::string table_csv(const report::Table& table);

}  // namespace dstrain::bench
