#include "engine/program/schedules/schedule.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {

LineCost equal_costs(const Stages& stages, bool split) {
  const ChunkCost chunk = split ? ChunkCost{} : ChunkCost{.input = 2, .weight = 0, .later = 0};
  return {.chunks = std::vector(to_index(stages.chunks()), chunk), .limits = {}};
}

PipelineSchedule forwards(const Stages& stages, int micro_batches) {
  PipelineSchedule schedule(to_index(stages.ranks()));
  for (int m = 0; m < micro_batches; ++m) {
    for (int c = 0; c < stages.chunks(); ++c)
      schedule[to_index(stages.rank[to_index(c)])].push_back({Pass::forward, c, m});
  }
  return schedule;
}

PipelineSchedule make_schedule(ScheduleName name, const Stages& stages, int micro_batches,
                               const LineCost& cost) {
  switch (name) {
    case ScheduleName::automatic:
      break;
    case ScheduleName::gpipe:
      return gpipe(stages, micro_batches);
    case ScheduleName::one_f_one_b:
      return one_f_one_b(stages, micro_batches);
    case ScheduleName::interleaved:
      return interleaved(stages, micro_batches);
    case ScheduleName::zero_bubble:
      return zero_bubble(stages, micro_batches, cost);
    case ScheduleName::dual_pipe_v:
      return dual_pipe_v(stages, micro_batches);
  }
  DSTRAIN_CHECK(false, "no schedule of that name");
}

}  // namespace dstrain
