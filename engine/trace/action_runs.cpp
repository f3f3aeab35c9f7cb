#include "engine/trace/action_runs.h"

#include <algorithm>
#include <tuple>

namespace dstrain::trace {

ActionRuns::ActionRuns(const RankEvents& rank) : rank_(&rank), runs_(rank.runs) {
  std::ranges::sort(runs_, [](const ActionRun& a, const ActionRun& b) {
    return std::tie(a.start_ns, a.end_ns, a.step, a.action) <
           std::tie(b.start_ns, b.end_ns, b.step, b.action);
  });
  std::map<std::string, std::size_t> last;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    by_action_[{runs_[i].step, static_cast<int>(runs_[i].action)}] = i;
    const std::string& lane = action(runs_[i]).lane;
    const auto found = last.find(lane);
    before_.push_back(found == last.end() ? std::nullopt : std::optional(found->second));
    last[lane] = i;
  }
}

std::optional<std::size_t> ActionRuns::find(std::int32_t step, int action) const {
  if (action < 0 || action >= static_cast<int>(rank_->program.size())) return std::nullopt;
  const std::string& lane = rank_->program[static_cast<std::size_t>(action)].lane;
  for (; action >= 0; --action) {
    if (rank_->program[static_cast<std::size_t>(action)].lane != lane) continue;
    const auto found = by_action_.find({step, action});
    if (found != by_action_.end()) return found->second;
  }
  return std::nullopt;
}

std::vector<std::size_t> ActionRuns::named(std::size_t run) const {
  const ActionRun& one = runs_[run];
  const ActionInfo& info = action(one);
  std::vector<std::size_t> list;
  const auto add = [&](std::int32_t step, const std::vector<int>& actions) {
    for (const int wanted : actions) {
      if (const auto found = find(step, wanted); found && *found != run) list.push_back(*found);
    }
  };
  add(one.step, info.after);
  add(one.step - 1, info.after_previous);
  return list;
}

std::vector<std::size_t> ActionRuns::predecessors(std::size_t run) const {
  std::vector<std::size_t> list = named(run);
  if (before_[run]) list.push_back(*before_[run]);
  return list;
}

std::optional<std::size_t> ActionRuns::last_of_other_lanes(std::size_t run) const {
  std::optional<std::size_t> last;
  for (const std::size_t other : named(run)) {
    if (action(runs_[other]).lane == action(runs_[run]).lane) continue;
    if (!last || runs_[other].end_ns > runs_[*last].end_ns) last = other;
  }
  return last;
}

LaneTime compute_lane_time(const RankEvents& rank, const ActionRuns& runs) {
  std::vector<Interval> compute, host, data;
  bool begun = false;
  std::int64_t free = 0;
  for (std::size_t i = 0; i < runs.runs().size(); ++i) {
    const ActionRun& run = runs.runs()[i];
    if (!runs_blocks(runs.action(run).lane)) continue;
    compute.push_back({run.start_ns, run.end_ns});
    if (begun && run.start_ns > free) {
      std::int64_t launched = free;
      if (run.launch_end_ns != GpuEvent::kNoLaunch) {
        launched = std::clamp(run.launch_end_ns, free, run.start_ns);
        host.push_back({free, launched});
      }
      const auto other = runs.last_of_other_lanes(i);
      if (other && runs.action(runs.runs()[*other]).kind == "load") {
        data.push_back({launched, std::clamp(runs.runs()[*other].end_ns, launched, run.start_ns)});
      }
    }
    free = begun ? std::max(free, run.end_ns) : run.end_ns;
    begun = true;
  }
  LaneTime time;
  time.compute = united(std::move(compute));
  const IntervalSet not_launched = united(std::move(host));
  const IntervalSet waits = intersected(not_launched, united(rank.data_waits));
  time.host = subtracted(not_launched, waits);
  data.insert(data.end(), waits.begin(), waits.end());
  time.data = subtracted(united(std::move(data)), time.compute);
  return time;
}

}  // namespace dstrain::trace
