#include <algorithm>

#include "engine/trace/figures.h"

namespace dstrain::trace {

std::optional<MemoryUse> memory_use(const RankEvents& rank, const Names& names) {
  if (rank.memory.empty() && rank.driver_allocations.empty()) return std::nullopt;
  MemoryUse use;
  use.planned = rank.planned_bytes;
  std::map<std::int64_t, MemoryUse::Step> steps;
  const bool single = std::ranges::any_of(rank.memory, &MemoryPoint::allocation);
  for (const MemoryPoint& point : rank.memory) {
    if (point.allocated > use.peak_allocated) {
      use.peak_allocated = point.allocated;
      use.peak_action = names[point.action];
    }
    use.peak_reserved = std::max(use.peak_reserved, point.reserved);
    if (point.step < 0) continue;
    MemoryUse::Step& step = steps[point.step];
    step.peak_allocated = std::max(step.peak_allocated, point.allocated);
    step.peak_reserved = std::max(step.peak_reserved, point.reserved);
    if (single) step.allocations = std::max<std::int64_t>(step.allocations, 0);
    if (point.allocation) ++step.allocations;
  }
  for (const auto& [step, calls] : rank.driver_allocations) steps[step].driver_calls = calls;
  for (auto& [number, step] : steps) {
    step.step = number;
    use.steps.push_back(step);
  }
  return use;
}

}  // namespace dstrain::trace
