#include "engine/report/lane_events.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/run_layout.h"
#include "engine/trace/scanner.h"
#include "engine/trace/trace_files.h"

namespace dstrain::report {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxEvents = 4000;  // of a timeline; browsers stay quick

std::optional<int> traced_rank(const std::string& name) {
  if (!name.starts_with("rank") || name.find("_trace.json") == std::string::npos ||
      name.ends_with(".part"))
    return std::nullopt;
  int rank = -1;
  const auto parsed = std::from_chars(name.data() + 4, name.data() + name.size(), rank);
  if (parsed.ec != std::errc() || rank < 0 || *parsed.ptr != '_') return std::nullopt;
  return rank;
}

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
  return window;
}

/// Traces of the last window by rank.
std::map<int, fs::path> find_window(const fs::path& run) {
  std::map<int, fs::path> files;
  std::error_code ignored;
  fs::path folder = trace::traces_of_run(run);
  const bool own = folder == RunLayout(run).traces();
  if (!fs::is_directory(folder, ignored)) return files;
  if (const auto all = trace::trace_windows(folder); !all.empty()) folder = all.back();
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const auto rank = traced_rank(entry.path().filename().string());
    if (rank && (own || !trace::other_run_of(entry.path(), run))) files[*rank] = entry.path();
  }
  return files;
}

std::map<int, RankWindow> read_windows(RunData& run) {
  const auto problem = [&](const fs::path& path, const Error& error) {
    run.problems.push_back({path.lexically_relative(run.path).string(), error.what()});
  };
  std::map<int, fs::path> files;
  try {
    files = find_window(run.path);
  } catch (const Error& error) {
    problem(RunLayout(run.path).traces(), error);
  }
  std::map<int, RankWindow> windows;
  for (const auto& [rank, file] : files) {
    try {
      windows[rank] = read_window(file, rank);
    } catch (const Error& error) {
      problem(file, error);
    }
  }
  return windows;
}

}  // namespace

void read_timeline(RunData& run) {
  std::map<int, RankWindow> windows = read_windows(run);
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
}

}  // namespace dstrain::report
