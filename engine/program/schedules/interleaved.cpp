#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/schedules/schedule.h"

namespace dstrain {
namespace {

/// Visits of all `chunks` of a rank: group after group of `ranks` micro-batches, in each of them
/// chunk after chunk.
std::vector<ChunkVisit> in_groups(Pass pass, const std::vector<int>& chunks, int ranks,
                                  int groups) {
  std::vector<ChunkVisit> list;
  for (int group = 0; group < groups; ++group) {
    for (const int chunk : chunks) {
      for (int m = 0; m < ranks; ++m) list.push_back({pass, chunk, group * ranks + m});
    }
  }
  return list;
}

}  // namespace

PipelineSchedule interleaved(const Stages& stages, int micro_batches) {
  const int ranks = stages.ranks(), per_rank = stages.chunks() / ranks;
  DSTRAIN_CHECK(stages.rank == chunk_ranks(ranks, per_rank, ChunkOrder::loop),
                "interleaved has its chunks in a loop");
  const int groups = (micro_batches + ranks - 1) / ranks;
  PipelineSchedule schedule(to_index(ranks));
  for (int r = 0; r < ranks; ++r) {
    std::vector<int> chunks;
    for (int turn = 0; turn < per_rank; ++turn) chunks.push_back(turn * ranks + r);
    const auto forward = in_groups(Pass::forward, chunks, ranks, groups);
    std::ranges::reverse(chunks);
    const auto backward = in_groups(Pass::backward, chunks, ranks, groups);
    // The last rank needs one chunk's micro-batches of each earlier chunk before its first
    // backward.
    const int ahead =
        std::min(2 * (ranks - 1 - r) + (per_rank - 1) * ranks, static_cast<int>(forward.size()));
    auto& visits = schedule[to_index(r)];
    visits.assign(forward.begin(), forward.begin() + ahead);
    for (std::size_t k = 0; k < backward.size(); ++k) {
      const std::size_t next = k + to_index(ahead);
      if (next < forward.size()) visits.push_back(forward[next]);
      visits.push_back(backward[k]);
    }
    // Groups are whole above: micro-batches that are not there leave their places empty.
    std::erase_if(visits, [&](const ChunkVisit& v) { return v.micro_batch >= micro_batches; });
  }
  return schedule;
}

}  // namespace dstrain
