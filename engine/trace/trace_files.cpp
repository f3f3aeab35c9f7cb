#include "engine/trace/trace_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/run_layout.h"
#include "engine/trace/scanner.h"

namespace dstrain::trace {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxRank = 1'000'000;

bool is_rank_trace(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with("merged_trace") || name.ends_with("_actions.json")) return false;
  return name.ends_with(".json") || name.ends_with(".json.gz") || name.ends_with(".json.zst");
}

std::vector<fs::path> traces_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::vector<std::string> windows;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && is_rank_trace(entry.path())) found.push_back(entry.path());
    if (entry.is_directory() && parse_checkpoint_name(entry.path()))
      windows.push_back(entry.path().filename().string());
  }
  std::ranges::sort(found);
  std::ranges::sort(windows);
  if (!found.empty()) return found;
  if (windows.size() == 1) return traces_in(folder / windows[0]);
  if (!windows.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("{} holds {} windows of traces", folder.string(), windows.size()),
                fmt::format("name one of them: {}", fmt::join(windows, ", ")));
  }
  throw Error(ErrorKind::usage, fmt::format("no trace in {}", folder.string()),
              "a run has traces with trace.steps above 0; files end in .json, .json.gz, .json.zst");
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
  const std::string name = path.filename().string();
  std::optional<int> rank = rank_in_name(name);
  if (const auto info = scanner.top("distributedInfo")) {
    if (const auto own = find_integer(*info, "rank"); own && *own >= 0 && *own < kMaxRank)
      rank = static_cast<int>(*own);
    if (const auto size = find_integer(*info, "world_size"); size && *size > 0 && *size <= kMaxRank)
      file.world_size = static_cast<int>(*size);
  }
  file.host = host_in_name(name);
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
  file.rank = rank.value_or(-1);
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

TraceSources find_rank_traces(std::span<const fs::path> sources) {
  TraceSources found;
  for (const fs::path& source : sources) {
    std::vector<fs::path> paths = {source};
    if (fs::is_directory(source)) {
      const fs::path inside = RunLayout(source).traces();
      paths = traces_in(fs::is_directory(inside) ? inside : source);
    }
    for (const fs::path& path : paths) found.files.push_back(describe_file(path));
  }
  if (found.files.size() == 1 && found.files[0].rank < 0) found.files[0].rank = 0;
  for (const TraceFile& file : found.files) {
    if (file.rank >= 0) continue;
    throw Error(ErrorKind::data, fmt::format("{}: of which rank?", file.path.string()),
                "it has no distributedInfo: put rank0, rank1, ... into the names of the files");
  }
  std::ranges::stable_sort(found.files, {}, &TraceFile::rank);
  check_together(found.files);
  note_what_is_missing(found);
  if (found.files.empty()) return found;
  found.folder = fs::absolute(found.files[0].path).parent_path();
  // traces/ or traces/step-00000100/ of a run.
  for (const fs::path& root :
       {found.folder.parent_path(), found.folder.parent_path().parent_path(), found.folder}) {
    if (found.clocks.empty() && fs::is_regular_file(RunLayout(root).clocks()))
      found.clocks = RunLayout(root).clocks();
  }
  return found;
}

}  // namespace dstrain::trace
