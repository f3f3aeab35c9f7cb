#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/report/run_data.h"

namespace dstrain::report {

/// What the wall time of a run went into; the rows are disjoint and add up to it.
struct GoodputRow {
  std::string what;
  double seconds = 0;
};

/// An end of the job before its last step that nobody had asked for.
struct Stop {
  std::string time;
  std::string kind;  ///< as failure.json has it; "no word of its end" where none was left
  std::string host;  ///< empty: not known
  int rank = -1;     ///< -1: none
  std::int64_t step = 0;
  std::int64_t lost_steps = 0;  ///< done again afterwards
  double down_s = kUnknown;     ///< to the end of the next first step; unknown: there was none
};

struct Goodput {
  double wall_s = 0;
  double share = 0;  ///< of the wall time: steps whose result the run has kept
  std::vector<GoodputRow> rows;
  int starts = 0;  ///< of the job that came to their first step
  std::vector<Stop> stops;
  /// Time of running between two stops, and its interval of 90 % where stops are independent of one
  /// another; unknown without a stop.
  double between_s = kUnknown, between_low_s = kUnknown, between_high_s = kUnknown;
  std::vector<std::string> twice;  ///< hosts with two stops or more
  int compared = 0;                ///< how often ranks compared what several hold
  int differed = 0;                ///< and found a difference
};

/// From events.jsonl, whose times are whole seconds, and the times of steps and evaluations.
/// Nothing for a run that has not come to its first step.
[[nodiscard]] std::optional<Goodput> goodput_of(const RunData& run);

}  // namespace dstrain::report
