#include "engine/trace/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/trace/figures.h"
#include "engine/trace/trace_files.h"

namespace dstrain::trace {
namespace {

EventLabel label_by(GroupBy by, const RankEvents& rank, const Names& names) {
  if (by == GroupBy::kernel) return [&names](const GpuEvent& e) { return names[e.name]; };
  return [by, &rank, &names](const GpuEvent& event) -> std::string {
    const std::string& action = names[event.action];
    if (action.empty()) return "(none)";
    if (by == GroupBy::action) return action;
    const auto info = rank.actions.find(action);
    if (info == rank.actions.end()) return "(none)";
    const std::string& value = by == GroupBy::phase ? info->second.phase : info->second.block;
    return value.empty() ? "(none)" : value;
  };
}

bool wanted(std::int64_t step, const AnalysisOptions& options) {
  return (!options.first_step || step >= *options.first_step) &&
         (!options.last_step || step <= *options.last_step);
}

/// Leaves out the events of other steps.
void keep_steps(RankEvents& rank, const AnalysisOptions& options) {
  if (!options.first_step && !options.last_step) return;
  std::erase_if(rank.events, [&](const GpuEvent& e) { return !wanted(e.step, options); });
  std::erase_if(rank.collectives, [&](const Collective& c) { return !wanted(c.step, options); });
  std::erase_if(rank.runs, [&](const ActionRun& run) { return !wanted(run.step, options); });
  std::erase_if(rank.memory, [&](const MemoryPoint& p) { return !wanted(p.step, options); });
  std::erase_if(rank.driver_allocations,
                [&](const auto& entry) { return !wanted(entry.first, options); });
}

/// A step's first loads and gathers may run beside the end of the step before; with them its window
/// would begin there, and most of it would count as idle.
void leave_out_early(std::vector<GpuEvent>& events, const RankEvents& rank, const Names& names) {
  if (rank.actions.empty() || rank.cpu) return;
  const auto computes = [&](const GpuEvent& event) {
    const auto info = rank.actions.find(names[event.action]);
    return info == rank.actions.end() || runs_blocks(info->second.lane);
  };
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  for (const GpuEvent& event : events)
    if (computes(event)) begin = std::min(begin, event.start_ns);
  std::erase_if(events, [&](const GpuEvent& e) { return !computes(e) && e.end_ns() <= begin; });
}

RankFigures figures_of(const RankEvents& rank, const Names& names) {
  RankFigures figures;
  figures.rank = rank.rank;
  figures.file = rank.file.string();
  figures.cpu = rank.cpu;
  figures.all = breakdown(rank.events);
  std::map<std::int64_t, std::vector<GpuEvent>> by_step;
  for (const GpuEvent& event : rank.events)
    if (event.step >= 0) by_step[event.step].push_back(event);
  for (auto& [step, events] : by_step) {
    leave_out_early(events, rank, names);
    figures.steps[step] = breakdown(events);
    events = {};
  }
  const bool actions = std::any_of(rank.events.begin(), rank.events.end(),
                                   [](const GpuEvent& e) { return e.action != 0; });
  figures.exposed = exposed_by_label(
      rank.events, label_by(actions ? GroupBy::action : GroupBy::kernel, rank, names));
  figures.launches = launches(rank);
  figures.memory = memory_use(rank, names);
  figures.copies = copy_rates(rank.events, names);
  figures.kinds = kind_times(rank);
  return figures;
}

void note_growth(Analysis& analysis) {
  const RankFigures& rank = analysis.ranks.back();
  if (!rank.memory) return;
  for (const MemoryUse::Step& step : rank.memory->steps) {
    if (!step.grew_late()) continue;
    analysis.notes.push_back(
        fmt::format("rank {}: {} calls of cudaMalloc in step {}: the allocator still grows, and "
                    "each call waits for the device",
                    rank.rank, step.driver_calls, step.step));
  }
}

/// Phases and blocks are in the side file of our own traces only.
void require_actions(const RankEvents& rank, GroupBy by) {
  if ((by == GroupBy::phase || by == GroupBy::block) && rank.actions.empty())
    throw Error(
        ErrorKind::usage,
        fmt::format("{}: no rank{}_actions.json beside it, so phases and blocks are unknown",
                    printable(rank.file.string()), rank.rank),
        "use --by kernel or --by action");
}

}  // namespace

std::string type_set_name(unsigned bits) {
  std::string name;
  for (const auto& [bit, text] :
       {std::pair{kCompute, "compute"}, std::pair{kCommunication, "communication"},
        std::pair{kMemory, "memory"}})
    if ((bits & bit) != 0) name += fmt::format("{}{}", name.empty() ? "" : " + ", text);
  return name;
}

Analysis analyze(const std::vector<std::filesystem::path>& sources,
                 const AnalysisOptions& options) {
  Analysis analysis;
  analysis.by = options.by;
  analysis.top = options.top;
  Names names;
  KernelTable table;
  std::vector<Collective> all_collectives;
  std::vector<RankEvents> programs;  ///< without events
  std::map<int, LaneTime> lanes;
  std::int64_t window = 0;
  const TracePaths found = find_traces(sources, TraceUse::analyze);
  analysis.notes = found.notes;
  for (const std::filesystem::path& file : found.files)
    for (RankEvents& rank : load_events(file, names, options.salvage)) {
      if (!options.ranks.empty() &&
          std::find(options.ranks.begin(), options.ranks.end(), rank.rank) == options.ranks.end())
        continue;
      analysis.notes.insert(analysis.notes.end(), rank.notes.begin(), rank.notes.end());
      keep_steps(rank, options);
      if (rank.events.empty()) {
        analysis.notes.push_back(fmt::format("{}: rank {} has no events of a device{}",
                                             printable(file.string()), rank.rank,
                                             options.first_step ? " in these steps" : ""));
        continue;
      }
      for (const RankFigures& other : analysis.ranks)
        if (other.rank == rank.rank)
          throw Error(ErrorKind::usage,
                      fmt::format("{} and {} are both of rank {}", printable(other.file),
                                  printable(file.string()), rank.rank),
                      "give the traces of one window of one run");
      require_actions(rank, options.by);
      table.add(rank.events, label_by(options.by, rank, names));
      analysis.ranks.push_back(figures_of(rank, names));
      window = std::max(window, analysis.ranks.back().all.window);
      all_collectives.insert(all_collectives.end(), rank.collectives.begin(),
                             rank.collectives.end());
      if (rank.runs.empty()) continue;
      lanes[rank.rank] = compute_lane_time(rank, ActionRuns(rank));
      note_growth(analysis);
      rank.events = {};
      programs.push_back(std::move(rank));
    }
  if (analysis.ranks.empty())
    throw Error(ErrorKind::usage, "nothing to analyze: no events of a device in these traces",
                analysis.notes.empty() ? "check --ranks and --steps" : analysis.notes.front());
  std::sort(analysis.ranks.begin(), analysis.ranks.end(),
            [](const RankFigures& a, const RankFigures& b) { return a.rank < b.rank; });
  analysis.kernels = table.rows(options.top, analysis.rest);
  number_by_order(all_collectives);
  if (!all_collectives.empty())
    analysis.collectives = collectives(all_collectives, names, window, lanes);
  if (programs.size() == analysis.ranks.size())
    analysis.path = critical_path(programs, all_collectives, names);
  return analysis;
}

}  // namespace dstrain::trace
