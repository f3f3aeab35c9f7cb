#pragma once

#include <vector>

#include "engine/bench/parallel_results.h"

namespace dstrain::bench {

/// What a rank measured in steps that count, means.
struct RankMeasure {
  int rank = 0;
  int stage = 0;  ///< its coordinate on the pipeline axis
  double step_s = kUnknown;
  double peak = kUnknown;  ///< bytes
  ExposedTime exposed = {};

  /// Share of a step in which it waits for other ranks of its pipeline, as the simulation counts.
  [[nodiscard]] double bubble() const { return (exposed.stages + exposed.norm) / step_s; }
};

/// Of the ranks that timed a step behind the warm-up: means of those of the `steps` steps that
/// count, where one of them was timed.
[[nodiscard]] std::vector<RankMeasure> rank_measures(const report::RunData& run, int steps);

}  // namespace dstrain::bench
