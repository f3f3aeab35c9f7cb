#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/schedules/schedule.h"

namespace dstrain {

PipelineSchedule one_f_one_b(const Stages& stages, int micro_batches) {
  DSTRAIN_CHECK(stages.rank == chunk_ranks(stages.ranks(), 1, ChunkOrder::loop),
                "1f1b has one chunk per rank");
  PipelineSchedule schedule(to_index(stages.ranks()));
  for (int r = 0; r < stages.ranks(); ++r) {
    const int ahead = std::min(stages.ranks() - 1 - r, micro_batches);
    auto& visits = schedule[to_index(r)];
    for (int m = 0; m < ahead; ++m) visits.push_back({Pass::forward, r, m});
    for (int m = 0; m < micro_batches; ++m) {
      if (m + ahead < micro_batches) visits.push_back({Pass::forward, r, m + ahead});
      visits.push_back({Pass::backward, r, m});
    }
  }
  return schedule;
}

}  // namespace dstrain
