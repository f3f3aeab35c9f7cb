#include "engine/program/pipeline.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {
namespace {

/// The chunk of each rank, where each has one and they stand in rank order.
void one_chunk_per_rank(const Stages& stages) {
  for (int c = 0; c < stages.chunks(); ++c)
    DSTRAIN_CHECK(stages.rank[to_index(c)] == c, "this schedule needs one chunk per rank");
}

}  // namespace

int Stages::ranks() const { return *std::ranges::max_element(rank) + 1; }

int Stages::chunk_of(int block) const {
  const auto next = std::ranges::upper_bound(first_block, block);
  return static_cast<int>(next - first_block.begin()) - 1;
}

int Stages::end_block(int chunk, int blocks) const {
  return chunk + 1 < chunks() ? first_block[to_index(chunk) + 1] : blocks;
}

Stages even_stages(int blocks, int ranks) {
  DSTRAIN_CHECK(ranks >= 1 && ranks <= blocks, "a pipeline needs at least a block per rank");
  Stages stages{.first_block = {}, .rank = {}};
  for (int r = 0; r < ranks; ++r) {
    stages.first_block.push_back(r * blocks / ranks);
    stages.rank.push_back(r);
  }
  return stages;
}

PipelineSchedule gpipe(const Stages& stages, int micro_batches) {
  one_chunk_per_rank(stages);
  PipelineSchedule schedule(to_index(stages.ranks()));
  for (int r = 0; r < stages.ranks(); ++r) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (int m = 0; m < micro_batches; ++m) schedule[to_index(r)].push_back({pass, r, m});
    }
  }
  return schedule;
}

PipelineSchedule one_f_one_b(const Stages& stages, int micro_batches) {
  one_chunk_per_rank(stages);
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

PipelineSchedule forwards(const Stages& stages, int micro_batches) {
  PipelineSchedule schedule(to_index(stages.ranks()));
  for (int m = 0; m < micro_batches; ++m) {
    for (int c = 0; c < stages.chunks(); ++c)
      schedule[to_index(stages.rank[to_index(c)])].push_back({Pass::forward, c, m});
  }
  return schedule;
}

PipelineSchedule make_schedule(ScheduleName name, const Stages& stages, int micro_batches) {
  switch (name) {
    case ScheduleName::one_f_one_b:
      return one_f_one_b(stages, micro_batches);
    case ScheduleName::gpipe:
      return gpipe(stages, micro_batches);
  }
  return {};
}

std::vector<Visit> block_visits(const std::vector<ChunkVisit>& visits, const Stages& stages,
                                int blocks, int first_trained) {
  std::vector<Visit> list;
  for (const ChunkVisit& visit : visits) {
    const int begin = stages.first_block[to_index(visit.chunk)];
    const int end = stages.end_block(visit.chunk, blocks);
    if (visit.pass == Pass::forward) {
      for (int b = begin; b < end; ++b) list.push_back({b, visit.micro_batch, Pass::forward});
    } else {
      for (int b = end - 1; b >= std::max(begin, first_trained); --b)
        list.push_back({b, visit.micro_batch, Pass::backward});
    }
  }
  return list;
}

int first_trained_block(const ModelCost& cost) {
  const auto trains = [&](const BlockCost& block) {
    return std::ranges::any_of(block.groups,
                               [&](int g) { return cost.groups[to_index(g)].trainable; });
  };
  const auto first = std::ranges::find_if(cost.blocks, trains);
  DSTRAIN_CHECK(first != cost.blocks.end(), "all weights are frozen");
  return static_cast<int>(first - cost.blocks.begin());
}

}  // namespace dstrain
