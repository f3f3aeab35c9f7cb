#include <algorithm>
#include <map>
#include <tuple>

#include "engine/trace/figures.h"

namespace dstrain::trace {

std::vector<KindTime> kind_times(const RankEvents& rank) {
  std::map<std::pair<std::string, std::string>, KindTime> kinds;
  const auto of = [&](const ActionInfo& action) -> KindTime& {
    KindTime& kind = kinds[{action.lane, action.kind}];
    kind.lane = action.lane;
    kind.kind = action.kind;
    return kind;
  };
  for (const ActionRun& run : rank.runs) {
    KindTime& kind = of(rank.program.at(run.action));
    ++kind.count;
    kind.ns += run.end_ns - run.start_ns;
  }
  for (const Collective& one : rank.collectives) {
    if (one.action < 0 || one.action >= static_cast<std::int32_t>(rank.program.size())) continue;
    of(rank.program[static_cast<std::size_t>(one.action)]).collectives += one.duration_ns;
  }
  std::vector<KindTime> list;
  for (auto& [key, kind] : kinds) list.push_back(std::move(kind));
  std::ranges::stable_sort(list, [](const KindTime& a, const KindTime& b) {
    const bool a_waits = a.lane != "compute", b_waits = b.lane != "compute";
    return std::tie(a_waits, a.lane, b.ns) < std::tie(b_waits, b.lane, a.ns);
  });
  return list;
}

}  // namespace dstrain::trace
