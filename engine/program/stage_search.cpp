#include "engine/program/stage_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/index.h"
#include "engine/program/schedules/visit_times.h"

namespace dstrain {
namespace {

/// One block more in chunk `to` and one less in chunk `from`; nothing where none would be left.
std::optional<Stages> moved(Stages stages, int from, int to, int blocks) {
  if (stages.end_block(from, blocks) - stages.first_block[to_index(from)] < 2) return {};
  for (int c = std::min(from, to) + 1; c <= std::max(from, to); ++c)
    stages.first_block[to_index(c)] += from < to ? -1 : 1;
  return stages;
}

}  // namespace

LineCost line_cost(const Stages& stages, const StageCosts& costs) {
  LineCost line{.chunks = {}, .transfer = costs.transfer, .limits = costs.limits};
  const int blocks = static_cast<int>(costs.blocks.size());
  for (int c = 0; c < stages.chunks(); ++c) {
    ChunkCost sum{.forward = 0, .input = 0, .weight = 0, .held = 0, .later = 0};
    for (int b = stages.first_block[to_index(c)]; b < stages.end_block(c, blocks); ++b) {
      const ChunkCost& block = costs.blocks[to_index(b)];
      sum.forward += block.forward;
      sum.input += block.input;
      sum.weight += block.weight;
      sum.held += block.held;
      sum.later += block.later;
    }
    line.chunks.push_back(sum);
  }
  return line;
}

CutSchedule schedule_cut(ScheduleName name, Stages stages, int micro_batches,
                         const StageCosts& costs) {
  const LineCost line = line_cost(stages, costs);
  PipelineSchedule visits = make_schedule(name, stages, micro_batches, line);
  const double makespan = time_visits(visits, stages, line).makespan;
  return {.stages = std::move(stages), .visits = std::move(visits), .makespan = makespan};
}

CutSchedule search_cut(ScheduleName name, const std::vector<int>& rank, int micro_batches,
                       const StageCosts& costs, int moves) {
  const int chunks = static_cast<int>(rank.size()), blocks = static_cast<int>(costs.blocks.size());
  std::vector<double> all;
  for (const ChunkCost& block : costs.blocks) all.push_back(block.all());
  CutSchedule best = schedule_cut(name, {.first_block = minimax_cut(all, chunks), .rank = rank},
                                  micro_batches, costs);
  int tries = 0;
  for (bool better = chunks > 1; better && tries < moves;) {
    better = false;
    for (int pair = 0; pair < chunks * chunks && tries < moves; ++pair) {
      const int from = pair / chunks, to = pair % chunks;
      if (from == to) continue;
      auto stages = moved(best.stages, from, to, blocks);
      if (!stages) continue;
      ++tries;
      CutSchedule other = schedule_cut(name, std::move(*stages), micro_batches, costs);
      if (other.makespan >= best.makespan) continue;
      best = std::move(other);
      better = true;
    }
  }
  return best;
}

}  // namespace dstrain
