#pragma once

#include <string>
#include <vector>

#include "engine/bench/parallel_results.h"
#include "engine/report/document.h"

namespace dstrain::bench {

/// A table with what it answers.
struct ParallelTable {
  std::string file;  ///< its name in parallel.json
  std::string title;
  report::Table table = {};
  std::vector<std::string> sentences = {};  ///< from its figures
};

/// Tables that have rows: speed, parts of a step, memory by stage, collectives, weak and strong
/// scaling, order of `plan --auto`.
[[nodiscard]] std::vector<ParallelTable> parallel_tables(
    const std::vector<ParallelResult>& results);
/// "qwen_2d on 1 rank, 8 samples: pipeline 2 ...": of the ways without figures.
[[nodiscard]] std::vector<std::string> not_run(const std::vector<ParallelResult>& results);

}  // namespace dstrain::bench
