#pragma once

#include <string>
#include <vector>

#include "engine/bench/bench_results.h"
#include "engine/bench/tables.h"
#include "engine/bench/zero_plan.h"

namespace dstrain::bench {

/// A cell of the tables: a way on a number of ranks.
struct ZeroCell {
  CaseResult result;  ///< its `failure` says why it has no figures
  ZeroWay way;
  bool scaling = false;  ///< of the weak scaling

  [[nodiscard]] bool ran() const { return result.runs > 0; }
  [[nodiscard]] double value(report::FigureKey key) const { return result.value(key); }
};

[[nodiscard]] BenchTables zero_tables(const std::vector<ZeroCell>& cells);

/// (after - before) / before in per cent; kUnknown where one is.
[[nodiscard]] double change_percent(double before, double after);
/// (before - after) / before in per cent.
[[nodiscard]] double savings_percent(double before, double after);

}  // namespace dstrain::bench
