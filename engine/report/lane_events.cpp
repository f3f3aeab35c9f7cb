#include "engine/report/lane_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "engine/base/error.h"
#include "engine/trace/scanner.h"

namespace dstrain::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxEvents = 4000;  // of a timeline; browsers stay quick

/// Lanes by the thread that their row has.
struct RankWindow {
  std::map<std::string, std::string> lanes;
  std::map<std::int64_t, std::int64_t> step_start;
  struct Row {
    std::string thread;
    std::int64_t step;
    LaneEvent event;
  };
  std::vector<Row> rows;
  std::string problem;  ///< what is broken in the file; empty: nothing
};

RankWindow read_window(const fs::path& path, int rank) {
  RankWindow window;
  trace::Scanner scanner(path);
  trace::Event event;
  while (scanner.next(event)) {
    if (event.phase == 'M' && event.name == "thread_name") {
      const auto name = trace::find_argument(event.args, "name");
      const std::string key = std::string(event.pid) + "/" + std::string(event.tid);
      if (name) window.lanes[key] = trace::unescape(*name);
      continue;
    }
    if (event.phase != 'X' || !event.category.starts_with("dstrain_")) continue;
    const auto step = trace::find_integer(event.args, "step");
    if (!step) continue;
    if (event.category == "dstrain_step") window.step_start[*step] = event.start_ns;
    if (event.category != "dstrain_lane") continue;
    window.rows.push_back({std::string(event.pid) + "/" + std::string(event.tid), *step,
                           LaneEvent{.rank = rank,
                                     .lane = {},
                                     .name = trace::unescape(event.name),
                                     .start_ns = event.start_ns,
                                     .duration_ns = std::max<std::int64_t>(0, event.duration_ns)}});
  }
  if (scanner.problems() > 0) {
    const trace::ScanProblem& first = scanner.first_problems().front();
    window.problem = fmt::format("{} (at byte {}; {} such places)", first.what, first.offset,
                                 scanner.problems());
  }
  return window;
}

}  // namespace

std::set<int> read_timeline(RunData& run, const std::map<int, fs::path>& files) {
  std::map<int, RankWindow> windows;
  std::set<int> broken;
  for (const auto& [rank, path] : files) {
    std::string what;
    try {
      windows[rank] = read_window(path, rank);
      what = windows[rank].problem;
    } catch (const Error& error) {
      what = error.what();
    }
    if (what.empty()) continue;
    broken.insert(rank);
    const fs::path relative = path.lexically_relative(run.path);
    run.problems.push_back(
        {relative.empty() || *relative.begin() == ".." ? path.string() : relative.string(),
         what + "; left out of the traced steps"});
  }
  for (const auto& [rank, window] : windows) {
    for (const auto& row : window.rows) run.timeline.step = std::max(run.timeline.step, row.step);
  }
  for (auto& [rank, window] : windows) {
    const auto start = window.step_start.find(run.timeline.step);
    std::int64_t begin = start == window.step_start.end() ? INT64_MAX : start->second;
    for (const auto& row : window.rows) {
      if (row.step == run.timeline.step) begin = std::min(begin, row.event.start_ns);
    }
    for (auto& row : window.rows) {
      if (row.step != run.timeline.step) continue;
      row.event.lane = window.lanes[row.thread];
      row.event.start_ns -= begin;
      run.timeline.events.push_back(std::move(row.event));
    }
  }
  auto& events = run.timeline.events;
  if (events.size() > kMaxEvents) {  // the longest are what one looks for
    std::nth_element(
        events.begin(), events.begin() + kMaxEvents, events.end(),
        [](const LaneEvent& a, const LaneEvent& b) { return a.duration_ns > b.duration_ns; });
    run.problems.push_back({"traces", "the timeline shows the 4000 longest actions of the step"});
    events.resize(kMaxEvents);
  }
  std::sort(events.begin(), events.end(), [](const LaneEvent& a, const LaneEvent& b) {
    return std::tie(a.rank, a.lane, a.start_ns) < std::tie(b.rank, b.lane, b.start_ns);
  });
  return broken;
}

}  // namespace dstrain::report
