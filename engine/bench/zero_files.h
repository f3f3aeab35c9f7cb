#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/bench/zero_tables.h"

namespace dstrain::bench {

/// zero.md, and what the terminal shows.
[[nodiscard]] report::Document zero_document(const BenchTables& tables,
                                             const std::vector<ZeroCell>& cells);
/// zero.csv: a row for each cell.
[[nodiscard]] std::string zero_csv(const std::vector<ZeroCell>& cells);
/// zero.json: cells and tables.
[[nodiscard]] nlohmann::ordered_json zero_json(const BenchTables& tables,
                                               const std::vector<ZeroCell>& cells);
/// zero_memory.csv: what the ranks of each run held over time, psrecord's columns behind the run's
/// name.
[[nodiscard]] std::string memory_series_csv(const std::vector<std::filesystem::path>& runs);

}  // namespace dstrain::bench
