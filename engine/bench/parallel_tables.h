#pragma once

#include <string>
#include <vector>

#include "engine/bench/tables.h"

namespace dstrain::bench {

/// Tables that have rows: speed, parts of a step, memory by stage, collectives, weak and strong
/// scaling, order of `plan --auto`.
[[nodiscard]] std::vector<BenchTable> parallel_tables(const std::vector<CaseResult>& results);
/// "qwen_2d on 1 rank, 8 samples: pipeline 2 ...": of the ways without figures.
[[nodiscard]] std::vector<std::string> not_run(const std::vector<CaseResult>& results);

}  // namespace dstrain::bench
