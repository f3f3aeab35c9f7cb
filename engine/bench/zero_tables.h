#pragma once

#include <string>
#include <vector>

#include "engine/bench/bench_results.h"
#include "engine/bench/zero_plan.h"
#include "engine/report/document.h"

namespace dstrain::bench {

/// A cell of the tables: a way on a number of ranks.
struct ZeroCell {
  CaseResult result;  ///< its `failure` says why it has no figures
  ZeroWay way;
  bool scaling = false;  ///< of the weak scaling

  [[nodiscard]] bool ran() const { return result.runs > 0; }
};

/// A table with what it answers.
struct ZeroTable {
  std::string file;  ///< "1-stages": its name in zero.json
  std::string title;
  report::Table table;
  std::vector<std::string> sentences;  ///< from its figures
  std::vector<std::string> not_run;    ///< "bloom on 8 ranks, stage 3: needs 8 GPUs"
};

struct ZeroTables {
  std::vector<ZeroTable> tables;
  std::vector<std::string> left_out;  ///< "Weak scaling: ...", with the reason
};
[[nodiscard]] ZeroTables zero_tables(const std::vector<ZeroCell>& cells);

/// Bytes in MiB.
[[nodiscard]] double mebibytes(double bytes);
/// (after - before) / before in per cent; kUnknown where one is.
[[nodiscard]] double change_percent(double before, double after);
/// (before - after) / before in per cent.
[[nodiscard]] double savings_percent(double before, double after);

}  // namespace dstrain::bench
