#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/schedules/schedule.h"

namespace dstrain {

PipelineSchedule gpipe(const Stages& stages, int micro_batches) {
  DSTRAIN_CHECK(stages.rank == chunk_ranks(stages.ranks(), 1, ChunkOrder::loop),
                "gpipe has one chunk per rank");
  PipelineSchedule schedule(to_index(stages.ranks()));
  for (int r = 0; r < stages.ranks(); ++r) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (int m = 0; m < micro_batches; ++m) schedule[to_index(r)].push_back({pass, r, m});
    }
  }
  return schedule;
}

}  // namespace dstrain
