#include "engine/trace/trace_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"
#include "engine/base/run_layout.h"
#include "engine/recipe/load.h"
#include "engine/trace/scanner.h"
#include "engine/trace/zip_file.h"

namespace dstrain::trace {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxRank = 1'000'000;

struct FolderTraces {
  std::vector<fs::path> ranks;
  std::vector<fs::path> merged;
  std::vector<fs::path> windows;  ///< folders, whatever they hold
  std::vector<fs::path> others;   ///< JSON under other names
  std::vector<fs::path> zips;

  void add(const fs::path& file);
  void finish();
};

void FolderTraces::add(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.ends_with(".zip")) zips.push_back(file);
  const bool json =
      name.ends_with(".json") || name.ends_with(".json.gz") || name.ends_with(".json.zst");
  if (!json || name.ends_with("_actions.json")) return;
  const bool trace = name.find("trace") != std::string::npos;
  (name.starts_with("merged_trace") ? merged : trace ? ranks : others).push_back(file);
}

/// Traces of other tools may be called otherwise, if nothing else is there.
void FolderTraces::finish() {
  if (ranks.empty() && merged.empty()) ranks = std::move(others);
  std::ranges::sort(ranks);
  std::ranges::sort(merged);
  std::ranges::sort(windows);
}

FolderTraces look_into(const fs::path& folder) {
  FolderTraces found;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const fs::path& path = i->path();
    std::error_code unknown;
    if (!i->is_directory(unknown))
      found.add(path);
    else if (parse_checkpoint_name(path))
      found.windows.push_back(path);
  }
  if (error) {
    throw Error(ErrorKind::usage,
                fmt::format("cannot read {}: {}", shown_path(folder), error.message()));
  }
  found.finish();
  return found;
}

bool holds_traces(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  const FolderTraces found = look_into(folder);
  return !found.ranks.empty() || !found.merged.empty() || !trace_windows(folder).empty();
}

std::vector<fs::path> traces_in(const fs::path& folder, TraceUse use,
                                std::vector<std::string>& notes) {
  FolderTraces found = look_into(folder);
  if (!found.ranks.empty()) return found.ranks;
  if (use == TraceUse::analyze && !found.merged.empty()) return found.merged;
  const std::vector<fs::path> windows = trace_windows(folder);
  if (windows.empty()) {
    throw Error(ErrorKind::usage, fmt::format("no trace in {}", shown_path(folder)),
                found.zips.empty()
                    ? "a run has traces with trace.steps above 0 (dstrain launch RECIPE --trace "
                      "3); files end in .json, .json.gz, .json.zst"
                    : fmt::format("name the ZIP, if that has them: {}",
                                  shown_path(found.zips.front())));
  }
  if (windows.size() > 1) {
    std::vector<std::string> names;
    for (const fs::path& window : windows) names.push_back(window.filename().string());
    if (use == TraceUse::merge) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} holds {} windows of traces", shown_path(folder), windows.size()),
                  fmt::format("name one of them: {}", fmt::join(names, ", ")));
    }
    notes.push_back(fmt::format("{} holds {} windows of traces: only the newest is read, {}",
                                shown_path(folder), windows.size(), names.back()));
  }
  return traces_in(windows.back(), use, notes);
}

/// Traces of the one folder of a ZIP that has some; of several windows as traces_in().
std::vector<fs::path> traces_in_zip(const fs::path& zip, TraceUse use,
                                    std::vector<std::string>& notes) {
  std::map<fs::path, FolderTraces> folders;
  for (const ZipMember& member : zip_members(zip)) {
    const fs::path path = zip / member.name;
    // What macOS packs beside each file.
    const bool extra = member.name.find("__MACOSX/") != std::string::npos ||
                       path.filename().string().starts_with("._");
    if (!extra) folders[path.parent_path()].add(path);
  }
  const auto keep = [&](auto&& has) {
    if (std::ranges::any_of(folders, [&](const auto& entry) { return has(entry.second); }))
      std::erase_if(folders, [&](const auto& entry) { return !has(entry.second); });
  };
  // As in folders: names that say "trace" come first, and those of single ranks before merged ones.
  keep([](const FolderTraces& f) { return !f.ranks.empty() || !f.merged.empty(); });
  for (auto& [folder, found] : folders) found.finish();
  keep([](const FolderTraces& f) { return !f.ranks.empty(); });
  std::erase_if(folders, [&](const auto& entry) {
    return entry.second.ranks.empty() && (use == TraceUse::merge || entry.second.merged.empty());
  });
  if (folders.empty()) {
    throw Error(ErrorKind::usage, fmt::format("no trace in {}", shown_path(zip)),
                "files of traces end in .json, .json.gz, .json.zst");
  }
  if (folders.size() > 1) {
    std::vector<std::string> names;
    bool windows = true;
    for (const auto& [folder, found] : folders) {
      names.push_back(shown(folder.lexically_relative(zip).string(), 100));
      windows = windows && parse_checkpoint_name(folder).has_value();
    }
    if (!windows || use == TraceUse::merge) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} holds traces in {} folders", shown_path(zip), folders.size()),
                  fmt::format("unpack it and name one of them: {}", fmt::join(names, ", ")));
    }
    notes.push_back(fmt::format("{} holds {} windows of traces: only the newest is read, {}",
                                shown_path(zip), folders.size(), names.back()));
  }
  const FolderTraces& found = folders.rbegin()->second;
  return found.ranks.empty() ? found.merged : found.ranks;
}

bool is_run(const fs::path& folder) {
  const RunLayout layout(folder);
  std::error_code error;
  return fs::is_directory(layout.traces(), error) || fs::exists(layout.recipe(), error);
}

/// What a run's own traces say that they are of.
std::string name_of_run(const fs::path& run) {
  const fs::path folder = fs::absolute(run).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

/// The number behind "rank" in a name, as in "rank3_trace.json" or "trace_rank-3.json".
std::optional<int> rank_in_name(const std::string& name) {
  for (std::size_t at = name.find("rank"); at != std::string::npos;
       at = name.find("rank", at + 1)) {
    std::size_t i = at + 4;
    if (i < name.size() && (name[i] == '_' || name[i] == '-')) ++i;
    const std::size_t begin = i;
    while (i < name.size() && std::isdigit(static_cast<unsigned char>(name[i])) != 0) ++i;
    if (i == begin || i - begin > 6) continue;
    return static_cast<int>(*to_integer(std::string_view(name).substr(begin, i - begin)));
  }
  return std::nullopt;
}

/// PyTorch's handler calls files HOST_PID.TIME.pt.trace.json.
std::string host_in_name(const std::string& name) {
  const auto dot = name.find('.');
  const auto low = name.rfind('_', dot);
  if (name.find(".pt.trace.json") == std::string::npos || low == std::string::npos || low == 0)
    return {};
  return name.substr(0, low);
}

TraceFile describe_file(const fs::path& path) {
  Scanner scanner(path);
  Event event;
  (void)scanner.next(event);  // what stands before the events
  TraceFile file{.path = path};
  file.base_ns = scanner.base_ns();
  const auto info = scanner.top("distributedInfo");
  if (info) {
    if (const auto size = find_integer(*info, "world_size"); size && *size > 0 && *size <= kMaxRank)
      file.world_size = static_cast<int>(*size);
  }
  file.host = host_in_name(path.filename().string());
  if (const auto ours = scanner.top("dstrain")) {
    const auto text = [&](const char* key) {
      const auto value = find_argument(*ours, key);
      return value ? unescape(*value) : std::string();
    };
    if (text("merged") == "true") {
      throw Error(ErrorKind::data, fmt::format("{} is a merged trace", path.string()),
                  "name the traces of the single ranks");
    }
    file.host = text("host");
    file.run = fmt::format("{} (program {})", text("run"), text("program"));
    file.incomplete = text("incomplete");
  }
  file.rank = rank_of_trace(path, info).value_or(-1);
  return file;
}

void check_together(const std::vector<TraceFile>& files) {
  for (std::size_t i = 1; i < files.size(); ++i) {
    const TraceFile& a = files[i - 1];
    const TraceFile& b = files[i];
    if (a.rank == b.rank) {
      throw Error(ErrorKind::usage,
                  fmt::format("rank {} is there twice: {} and {}", a.rank, a.path.string(),
                              b.path.string()),
                  "name one trace for each rank");
    }
    const bool other_run = !a.run.empty() && !b.run.empty() && a.run != b.run;
    const bool other_size = a.world_size > 0 && b.world_size > 0 && a.world_size != b.world_size;
    if (other_run || other_size) {
      const auto told = [&](const TraceFile& file) {
        return other_run ? fmt::format("run {}", shown(file.run, 100))
                         : fmt::format("{} ranks", file.world_size);
      };
      throw Error(ErrorKind::data,
                  fmt::format("traces of different runs: {} is of {}, {} of {}", a.path.string(),
                              told(a), b.path.string(), told(b)),
                  "name the traces of one run");
    }
  }
}

void note_what_is_missing(TraceSources& sources) {
  int world_size = 0;
  for (const TraceFile& file : sources.files) {
    world_size = std::max(world_size, file.world_size);
    if (!file.incomplete.empty()) {
      sources.notes.push_back(
          fmt::format("rank {}: events are missing: {}", file.rank, shown(file.incomplete, 200)));
    }
  }
  std::vector<int> missing;
  auto next = sources.files.begin();
  for (int rank = 0; rank < world_size; ++rank) {
    while (next != sources.files.end() && next->rank < rank) ++next;
    if (next == sources.files.end() || next->rank != rank) missing.push_back(rank);
  }
  if (missing.empty()) return;
  const std::size_t count = missing.size();
  if (count > 20) missing.resize(20);
  sources.notes.push_back(fmt::format("no trace of {} of {} ranks: {}{}", count, world_size,
                                      fmt::join(missing, ", "), count > 20 ? ", ..." : ""));
}

}  // namespace

std::vector<fs::path> trace_windows(const fs::path& folder) {
  std::vector<fs::path> windows;
  for (const fs::path& window : look_into(folder).windows) {
    const FolderTraces found = look_into(window);
    if (!found.ranks.empty() || !found.merged.empty()) windows.push_back(window);
  }
  return windows;
}

fs::path traces_of_run(const fs::path& run) {
  const RunLayout layout(run);
  std::error_code error;
  if (holds_traces(layout.traces()) || !fs::exists(layout.recipe(), error)) return layout.traces();
  try {
    const std::string output = load_recipe(layout.recipe()).recipe.trace.output;
    if (!output.empty() && holds_traces(output)) return output;
  } catch (const Error&) {
    // A recipe that this version or this host refuses says nothing about traces.
  }
  return layout.traces();
}

std::string run_of_trace(const fs::path& file) {
  Scanner scanner(file);
  Event event;
  (void)scanner.next(event);  // what stands before the events
  const auto ours = scanner.top("dstrain");
  const auto name = ours ? find_argument(*ours, "run") : std::nullopt;
  return name ? unescape(*name) : std::string();
}

TracePaths find_traces(std::span<const fs::path> sources, TraceUse use) {
  TracePaths found;
  for (const fs::path& source : sources) {
    const PathKind kind = path_kind(source, ErrorKind::usage);
    if (kind == PathKind::nothing) {
      throw Error(ErrorKind::usage, fmt::format("{}: no such file", shown_path(source)),
                  "name a run, a folder of traces, or traces");
    }
    if (kind == PathKind::file && is_zip(source)) {
      const std::vector<fs::path> files = traces_in_zip(source, use, found.notes);
      found.files.insert(found.files.end(), files.begin(), files.end());
      continue;
    }
    if (kind != PathKind::folder) {
      found.files.push_back(source);
      continue;
    }
    const bool run = is_run(source);
    const fs::path folder = run ? traces_of_run(source) : source;
    const std::vector<fs::path> files = traces_in(folder, use, found.notes);
    if (run && folder != RunLayout(source).traces()) {
      const std::string writer = run_of_trace(files.front());
      if (!writer.empty() && writer != name_of_run(source))
        found.notes.push_back(fmt::format("{} is a trace of run {}, which wrote to the same folder",
                                          shown_path(files.front()), shown(writer, 100)));
    }
    if (run && found.run.empty()) found.run = source;
    found.files.insert(found.files.end(), files.begin(), files.end());
  }
  return found;
}

std::optional<int> rank_of_trace(const fs::path& file,
                                 const std::optional<std::string>& distributed_info) {
  if (distributed_info) {
    const auto rank = find_integer(*distributed_info, "rank");
    if (rank && *rank >= 0 && *rank < kMaxRank) return static_cast<int>(*rank);
  }
  return rank_in_name(file.filename().string());
}

TraceSources find_rank_traces(std::span<const fs::path> sources) {
  TraceSources found;
  const TracePaths paths = find_traces(sources, TraceUse::merge);
  for (const fs::path& path : paths.files) found.files.push_back(describe_file(path));
  if (found.files.size() == 1 && found.files[0].rank < 0) found.files[0].rank = 0;
  for (const TraceFile& file : found.files) {
    if (file.rank >= 0) continue;
    throw Error(ErrorKind::data, fmt::format("{}: of which rank?", file.path.string()),
                "it has no distributedInfo: put rank0, rank1, ... into the names of the files");
  }
  std::ranges::stable_sort(found.files, {}, &TraceFile::rank);
  check_together(found.files);
  found.notes = paths.notes;
  note_what_is_missing(found);
  if (found.files.empty()) return found;
  const auto zip = place_in_zip(found.files[0].path);
  found.folder = fs::absolute(zip ? zip->zip : found.files[0].path).parent_path();
  // traces/ or traces/step-00000100/ of a run.
  for (const fs::path& root : {paths.run, found.folder.parent_path(),
                               found.folder.parent_path().parent_path(), found.folder}) {
    if (!root.empty() && found.clocks.empty() && fs::is_regular_file(RunLayout(root).clocks()))
      found.clocks = RunLayout(root).clocks();
  }
  return found;
}

}  // namespace dstrain::trace
