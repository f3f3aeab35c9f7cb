#pragma once

#include <vector>

#include "engine/bench/bench_results.h"

namespace dstrain::bench {

/// Where the compute lane of a rank stood still, seconds of a step. Disjoint.
struct ExposedTime {
  double gather = 0;  ///< of parameters
  double reduce = 0;  ///< of gradients
  double stages = 0;  ///< receives from other stages, and sends whose buffer is needed
  double norm = 0;    ///< the sum over all ranks before the update
  double input = 0;   ///< samples
};
/// Its parts, with the figure that is their mean over the ranks.
struct ExposedPart {
  double ExposedTime::*seconds;
  report::FigureKey figure;
};
inline constexpr ExposedPart kExposedParts[] = {{&ExposedTime::gather, "exposed_gather_s"},
                                                {&ExposedTime::reduce, "exposed_reduce_s"},
                                                {&ExposedTime::stages, "exposed_stages_s"},
                                                {&ExposedTime::norm, "exposed_norm_s"},
                                                {&ExposedTime::input, "exposed_input_s"}};

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

/// Figures of the ranks that timed a step behind the warm-up: means of those of the `steps` steps
/// that count, where one of them was timed.
[[nodiscard]] std::vector<RankMeasure> rank_measures(const report::RunData& run, int steps);

}  // namespace dstrain::bench
