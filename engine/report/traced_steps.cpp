#include "engine/report/traced_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/run_layout.h"
#include "engine/report/lane_events.h"
#include "engine/report/words.h"
#include "engine/trace/trace_files.h"

namespace dstrain::report {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTraceBytes = std::uint64_t{1} << 30;

/// Trace files of one window.
struct Window {
  fs::path folder;
  std::map<int, fs::path> ranks;
  fs::path merged;  ///< empty: none
};

/// The rank of "rank3_trace.json" and its packed forms.
std::optional<int> traced_rank(const std::string& name) {
  if (!name.starts_with("rank")) return std::nullopt;
  int rank = -1;
  const auto parsed = std::from_chars(name.data() + 4, name.data() + name.size(), rank);
  if (parsed.ec != std::errc() || rank < 0) return std::nullopt;
  const std::string_view rest =
      std::string_view(name).substr(static_cast<std::size_t>(parsed.ptr - name.data()));
  if (rest != "_trace.json" && rest != "_trace.json.gz" && rest != "_trace.json.zst")
    return std::nullopt;
  return rank;
}

Window window_in(const fs::path& folder) {
  Window window = {.folder = folder, .ranks = {}, .merged = {}};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (const auto rank = traced_rank(name)) window.ranks[*rank] = entry.path();
    if (name == "merged_trace.json" || name == "merged_trace.json.gz") window.merged = entry.path();
  }
  return window;
}

/// The steps of a folder with traces, or of the last step-* folder in it that has some.
Window last_window(const fs::path& folder) {
  Window window = window_in(folder);
  if (!window.ranks.empty()) return window;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return window;
  std::vector<fs::path> windows = trace::trace_windows(folder);
  while (window.ranks.empty() && !windows.empty()) {
    window = window_in(windows.back());
    windows.pop_back();
  }
  return window;
}

/// Path as problems of the run name it.
std::string name_in(const RunData& run, const fs::path& path) {
  const fs::path relative = path.lexically_relative(run.path);
  return relative.empty() || *relative.begin() == ".." ? shown(path.string(), 300)
                                                       : relative.string();
}

/// The window in the folder that trace.output names, if it is of this run.
Window window_elsewhere(RunData& run) {
  const std::string& output = run.trace_output;
  if (run.trace_steps == 0) return {};
  if (output.empty()) {
    run.missing.emplace_back("traces/rank0_trace.json");
    return {};
  }
  Window window = last_window(output);
  if (window.ranks.empty()) {
    run.problems.push_back({shown(output, 300), "no traces there, where trace.output puts them"});
    return {};
  }
  const fs::path& first = window.ranks.begin()->second;
  try {
    const std::string name = trace::run_of_trace(first);
    if (name == run.name) return window;
    run.problems.push_back(
        {name_in(run, first),
         name.empty() ? std::string("names no run; its folder is left out")
                      : fmt::format("is of the run {}; its folder is left out", shown(name, 100))});
  } catch (const Error& error) {
    run.problems.push_back({name_in(run, first), error.what()});
  }
  return {};
}

/// 0 where it cannot be read, which the reader of it will tell.
std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

TracedSteps analyze_window(const Window& window, const std::vector<fs::path>& sources) {
  TracedSteps traced = {.folder = window.folder, .analysis = trace::analyze(sources, {})};
  for (const trace::RankFigures& rank : traced.analysis.ranks) {
    if (rank.steps.empty()) continue;
    const std::int64_t first = rank.steps.begin()->first;
    traced.first_step = traced.first_step == 0 ? first : std::min(traced.first_step, first);
    traced.last_step = std::max(traced.last_step, rank.steps.rbegin()->first);
  }
  return traced;
}

/// Over several hosts ranks wait for each other only by aligned clocks: those of the merged file.
void read_figures(RunData& run, const Window& window, bool whole) {
  const bool hosts = !run.clocks.empty();
  if (hosts && whole && !window.merged.empty()) {
    try {
      run.traced = analyze_window(window, {window.merged});
      return;
    } catch (const Error& error) {
      run.problems.push_back({name_in(run, window.merged), error.what()});
    }
  }
  std::vector<fs::path> sources;
  for (const auto& [rank, path] : window.ranks) sources.push_back(path);
  try {
    run.traced = analyze_window(window, sources);
  } catch (const Error& error) {
    run.problems.push_back({name_in(run, window.folder), error.what()});
    return;
  }
  if (!hosts || !run.traced->analysis.path) return;
  run.traced->analysis.path.reset();
  run.traced->analysis.notes.emplace_back(
      "no critical path: the clocks of the hosts are aligned in the merged trace alone, and there "
      "is none that can be used (dstrain trace merge)");
}

}  // namespace

void read_traces(RunData& run) {
  Window window = last_window(RunLayout(run.path).traces());
  if (window.ranks.empty()) window = window_elsewhere(run);
  if (window.ranks.empty()) return;
  std::uint64_t bytes = run.clocks.empty() ? 0 : size_of(window.merged);
  for (const auto& [rank, path] : window.ranks) bytes += size_of(path);
  if (bytes > kMaxTraceBytes) {
    run.problems.push_back(
        {name_in(run, window.folder),
         fmt::format("traces of {} are not read here; use dstrain trace analyze {}",
                     bytes_words(static_cast<double>(bytes)), shown(window.folder.string(), 300))});
    return;
  }
  const std::size_t before = window.ranks.size();
  for (const int rank : read_timeline(run, window.ranks)) window.ranks.erase(rank);
  if (!window.ranks.empty()) read_figures(run, window, window.ranks.size() == before);
}

std::vector<PathKind> path_by_kind(const trace::CriticalPath& path) {
  std::map<std::string, PathKind> kinds;
  for (const trace::CriticalPath::Row& row : path.rows) kinds[row.kind].on_path += row.ns;
  for (const trace::CriticalPath::Row& row : path.gains) kinds[row.kind].gain += row.ns;
  std::vector<PathKind> rows;
  for (auto& [name, kind] : kinds) {
    kind.kind = name;
    if (name == trace::CriticalPath::kRest) kind.gain = -1;
    rows.push_back(std::move(kind));
  }
  std::ranges::stable_sort(
      rows, [](const PathKind& a, const PathKind& b) { return a.on_path > b.on_path; });
  return rows;
}

std::vector<StepMemory> memory_by_step(const trace::Analysis& analysis) {
  std::map<std::int64_t, StepMemory> steps;
  for (const trace::RankFigures& rank : analysis.ranks) {
    if (!rank.memory) continue;
    for (const trace::MemoryUse::Step& step : rank.memory->steps) {
      StepMemory& row = steps[step.step];
      row.step = step.step;
      row.driver_calls += step.driver_calls;
      if (step.peak_allocated <= row.allocated) continue;
      row.rank = rank.rank;
      row.allocated = step.peak_allocated;
      row.reserved = step.peak_reserved;
      row.planned = rank.memory->planned;
    }
  }
  std::vector<StepMemory> rows;
  for (const auto& [number, row] : steps) rows.push_back(row);
  return rows;
}

}  // namespace dstrain::report
