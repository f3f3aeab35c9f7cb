#pragma once

#include <string>
#include <vector>

#include "engine/bench/tables.h"

namespace dstrain::bench {

/// zero.md, zero.csv (a row for each cell), zero_memory.csv, zero.json.
[[nodiscard]] BenchPages zero_pages(const BenchResults& results);

/// zero_memory.csv: what the ranks of each run held over time, psrecord's columns behind the run's
/// name.
[[nodiscard]] std::string memory_series_csv(const std::vector<report::RunFigures>& runs);

}  // namespace dstrain::bench
