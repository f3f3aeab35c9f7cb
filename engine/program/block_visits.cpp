#include "engine/program/block_visits.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/schedules/visit_times.h"

namespace dstrain {

bool splits_backward(const BlockCost& block, const Layout& layout) {
  return block.held_bytes > 0 &&
         std::ranges::none_of(block.groups, [&](int g) { return layout.reduced_from_slot(g); });
}

std::vector<Visit> block_visits(const std::vector<ChunkVisit>& visits, const Layout& layout,
                                const ModelCost& cost, int first_trained) {
  const Stages& stages = layout.stages;
  std::vector<Visit> list;
  for (std::size_t stay = 0; stay < visits.size(); ++stay) {
    const auto& [pass, chunk, micro_batch] = visits[stay];
    const int begin = stages.first_block[to_index(chunk)];
    const int end = stages.end_block(chunk, static_cast<int>(cost.blocks.size()));
    if (pass == Pass::forward) {
      for (int b = begin; b < end; ++b) list.push_back({b, micro_batch, pass, stay});
      continue;
    }
    for (int b = end - 1; b >= std::max(begin, first_trained); --b) {
      const bool splits = splits_backward(cost.blocks[to_index(b)], layout);
      if (pass == Pass::weight && !splits) continue;
      list.push_back({b, micro_batch, splits ? pass : Pass::backward, stay});
    }
  }
  return list;
}

std::vector<Visit> two_at_once(const std::vector<Visit>& visits) {
  std::vector<Visit> list;
  for (auto first = visits.begin(); first != visits.end();) {
    const auto other = [&](auto begin) {
      return std::find_if(begin, visits.end(), [&](const Visit& visit) {
        return visit.micro_batch != begin->micro_batch;
      });
    };
    const auto second = other(first), end = second == visits.end() ? second : other(second);
    for (auto own = first, beside = second; own != second || beside != end;) {
      if (own != second) list.push_back(*own++);
      if (beside != end) list.push_back(*beside++);
    }
    first = end;
  }
  return list;
}

std::vector<Arrival> arrivals(const PipelineSchedule& schedule, const Stages& stages, int blocks,
                              int first_trained, int coordinate) {
  const VisitTimes times = time_visits(schedule, stages, equal_costs(stages));
  const std::vector<double>& own = times.start[to_index(coordinate)];
  std::vector<std::pair<double, Arrival>> list;
  for (int r = 0; r < static_cast<int>(schedule.size()); ++r) {
    for (std::size_t v = 0; r != coordinate && v < schedule[to_index(r)].size(); ++v) {
      const auto& [pass, chunk, micro_batch] = schedule[to_index(r)][v];
      const bool forward = pass == Pass::forward;
      const int other = forward ? chunk + 1 : chunk - 1;
      if (pass == Pass::weight || other < 0 || other == stages.chunks()) continue;
      if (stages.rank[to_index(other)] != coordinate) continue;
      const int block =
          (forward ? stages.end_block(chunk, blocks) : stages.first_block[to_index(chunk)]) - 1;
      if (!forward && block < first_trained) continue;
      const double end = times.end[to_index(r)][v];
      const auto at = std::ranges::lower_bound(own, end);
      list.push_back({end,
                      {.from = r,
                       .block = block,
                       .micro_batch = micro_batch,
                       .gradient = !forward,
                       .visit = to_index(static_cast<int>(at - own.begin()))}});
    }
  }
  std::ranges::stable_sort(list, {}, &std::pair<double, Arrival>::first);
  std::vector<Arrival> sorted;
  for (const auto& [time, arrival] : list) sorted.push_back(arrival);
  return sorted;
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
