#pragma once

#include <vector>

#include "engine/program/schedules/schedule.h"

namespace dstrain {

/// Times of the visits of a schedule, by rank and place in its list.
struct VisitTimes {
  std::vector<std::vector<double>> start, end;
  double makespan = 0;
  std::vector<double> held;  ///< by rank: the most memory at once

  /// Share of the makespan that the average rank has nothing to run.
  [[nodiscard]] double lost(const LineCost& cost, int micro_batches) const;
};

/// Plays the schedule: a visit begins when its rank is free and what it reads has come.
/// Error{internal} where the ranks would wait for each other.
[[nodiscard]] VisitTimes time_visits(const PipelineSchedule& schedule, const Stages& stages,
                                     const LineCost& cost);

}  // namespace dstrain
