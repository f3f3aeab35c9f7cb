#pragma once

#include <vector>

#include "engine/bench/tables.h"

namespace dstrain::bench {

[[nodiscard]] BenchTables zero_tables(const std::vector<CaseResult>& cells);

}  // namespace dstrain::bench
