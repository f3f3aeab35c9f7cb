#include "engine/trace/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/trace/input_stream.h"
#include "engine/trace/merge_writer.h"

namespace dstrain::trace {
namespace {

constexpr std::uint64_t kEventsBetweenProgress = 65536;

struct TimeRange {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = std::numeric_limits<std::int64_t>::min();

  void add(std::int64_t from, std::int64_t to) {
    begin = std::min(begin, from);
    end = std::max(end, to);
  }
  [[nodiscard]] bool empty() const { return begin > end; }
  [[nodiscard]] bool meets(std::int64_t from, std::int64_t to) const {
    return from <= end && to >= begin;
  }
};

/// Times of the chosen steps in one trace.
struct StepTimes {
  TimeRange host;
  TimeRange device;
  std::int64_t late_base_ns = 0;
};

class Merger {
 public:
  Merger(const TraceSources& sources, const MergeOptions& options)
      : sources_(sources), options_(options) {
    for (const TraceFile& file : sources.files) {
      const bool wanted = options.ranks.empty() ||
                          std::ranges::find(options.ranks, file.rank) != options.ranks.end();
      if (wanted) files_.push_back(&file);
    }
    if (files_.empty())
      throw Error(ErrorKind::usage, "no trace of the ranks that --ranks names",
                  "leave it out: all");
  }

  MergeResult run();

 private:
  void align();
  StepTimes first_look(const TraceFile& file, CollectiveReader* collectives);
  void copy(const TraceFile& file, const HostClock* clock, MergeWriter& writer);
  [[nodiscard]] bool is_wanted(const Event& event, const StepTimes& times) const;
  void report_problems(const TraceFile& file, const Scanner& scanner);
  void progress(const Scanner& scanner);

  const TraceSources& sources_;
  const MergeOptions& options_;
  std::vector<const TraceFile*> files_;
  std::vector<std::size_t> host_of_;  ///< in result_.clocks, by file
  std::vector<StepTimes> times_;      ///< by file; empty: not looked at
  bool two_passes_ = false;
  std::uint64_t done_ = 0;  ///< bytes of files that are through
  std::uint64_t all_ = 0;
  std::uint64_t calls_ = 0;
  MergeResult result_;
};

void Merger::progress(const Scanner& scanner) {
  if (options_.progress && ++calls_ % kEventsBetweenProgress == 0)
    options_.progress(done_ + scanner.file_bytes(), all_);
}

void Merger::report_problems(const TraceFile& file, const Scanner& scanner) {
  if (std::string note = scanner.negative_durations(file.rank); !note.empty())
    result_.notes.push_back(std::move(note));
  if (scanner.problems() == 0) return;
  const ScanProblem& first = scanner.first_problems().front();
  result_.notes.push_back(
      fmt::format("rank {}: {} place{} of {} cannot be read; the first, at byte {}: {}", file.rank,
                  scanner.problems(), scanner.problems() == 1 ? "" : "s", file.path.string(),
                  first.offset, first.what));
}

/// Collectives for the clocks, and when the chosen steps were.
StepTimes Merger::first_look(const TraceFile& file, CollectiveReader* collectives) {
  StepTimes times;
  Scanner scanner(file.path);
  Event event;
  while (scanner.next(event)) {
    progress(scanner);
    if (collectives != nullptr) collectives->take(event, 0);
    constexpr std::string_view kStep = "ProfilerStep#";
    if (!options_.steps || !event.name.starts_with(kStep)) continue;
    const auto step = to_integer(event.name.substr(kStep.size()));
    if (!step || *step < options_.steps->first || *step > options_.steps->second) continue;
    TimeRange& range = is_of_device(event) ? times.device : times.host;
    range.add(event.start_ns, event.start_ns + event.duration_ns);
  }
  times.late_base_ns = scanner.late_base_ns();
  done_ += scanner.file_bytes();
  return times;
}

void Merger::align() {
  const bool unknown =
      std::ranges::any_of(files_, [](const TraceFile* f) { return f->host.empty(); });
  std::map<std::string, std::size_t> numbers;
  std::vector<HostClock> hosts;
  for (const TraceFile* file : files_) {
    const std::string host = unknown ? fmt::format("rank {}", file->rank) : file->host;
    const auto [at, added] = numbers.try_emplace(host, hosts.size());
    if (added) hosts.push_back({.host = host});
    host_of_.push_back(at->second);
  }
  if (!sources_.clocks.empty() && !unknown && options_.align != MergeAlign::none) {
    ClockFile clocks = read_clocks(sources_.clocks);
    for (HostClock& host : hosts) host.samples = std::move(clocks.hosts[host.host]);
    if (clocks.broken_lines > 0) {
      result_.notes.push_back(fmt::format("{}: {} lines cannot be read", sources_.clocks.string(),
                                          clocks.broken_lines));
    }
  }
  ClockSolver solver(hosts, unknown);
  const bool by_collectives = options_.align == MergeAlign::collectives && hosts.size() > 1;
  two_passes_ = by_collectives || options_.steps.has_value();
  for (const TraceFile* file : files_) all_ += stored_bytes(file->path) * (two_passes_ ? 2 : 1);
  if (two_passes_) {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      CollectiveReader collectives(solver, host_of_[i]);
      times_.push_back(first_look(*files_[i], by_collectives ? &collectives : nullptr));
    }
  }
  if (options_.align == MergeAlign::none || hosts.size() == 1) return;
  result_.clocks = solver.solve();
  for (const HostClock& host : result_.clocks) {
    if (host.stepped) {
      result_.notes.push_back(fmt::format(
          "the clock of {} was set while it was traced: its times are put right step by step",
          shown(host.host)));
    } else if (!host.bounded && host.samples.empty()) {
      result_.notes.push_back(
          fmt::format("nothing tells how far the clock of {} is off: its times stay as they are",
                      shown(host.host)));
    }
  }
}

bool Merger::is_wanted(const Event& event, const StepTimes& times) const {
  if (event.phase == 'M') return true;
  const bool device = is_of_device(event);
  const bool flow = event.phase == 's' || event.phase == 't' || event.phase == 'f';
  if (options_.lanes == MergeLanes::device && (!device || flow)) return false;
  if (options_.lanes == MergeLanes::host && (device || flow)) return false;
  if (event.phase == 'X' && event.duration_ns < options_.min_ns) return false;
  if (!options_.steps) return true;
  if (const auto step = device ? find_integer(event.args, "step") : std::nullopt)
    return *step >= options_.steps->first && *step <= options_.steps->second;
  const std::int64_t end = event.start_ns + event.duration_ns;
  if (flow) return times.host.meets(event.start_ns, end) || times.device.meets(event.start_ns, end);
  const TimeRange& range = device && !times.device.empty() ? times.device : times.host;
  return range.meets(event.start_ns, end);
}

void Merger::copy(const TraceFile& file, const HostClock* clock, MergeWriter& writer) {
  const auto index = static_cast<std::size_t>(std::ranges::find(files_, &file) - files_.begin());
  StepTimes times = two_passes_ ? times_[index] : StepTimes{};
  if (options_.steps && times.host.empty() && times.device.empty())
    result_.notes.push_back(
        fmt::format("rank {}: no such step in {}", file.rank, file.path.string()));
  Scanner scanner(file.path);
  Event event;
  writer.begin_rank(file.rank);
  while (scanner.next(event)) {
    progress(scanner);
    if (!is_wanted(event, times)) continue;
    const std::int64_t start = event.start_ns + times.late_base_ns;
    writer.write(event, clock != nullptr ? clock->align(start) : start);
    ++result_.events;
  }
  writer.end_rank();
  if (scanner.late_base_ns() != times.late_base_ns) {
    throw Error(ErrorKind::data,
                fmt::format("{}: baseTimeNanoseconds stands behind the events", file.path.string()),
                "merge it with --steps, which reads each file twice");
  }
  report_problems(file, scanner);
  result_.text_bytes += scanner.bytes();
  done_ += scanner.file_bytes();
}

MergeResult Merger::run() {
  result_.notes = sources_.notes;
  align();
  std::vector<int> ranks;
  ranks.reserve(files_.size());
  for (const TraceFile* file : files_) ranks.push_back(file->rank);
  const auto writer = options_.format == MergeFormat::json
                          ? make_json_writer(options_.output, files_.front()->base_ns, ranks)
                          : make_perfetto_writer(options_.output, options_.memory_bytes);
  for (std::size_t i = 0; i < files_.size(); ++i)
    copy(*files_[i], result_.clocks.empty() ? nullptr : &result_.clocks[host_of_[i]], *writer);
  result_.bytes = writer->close();
  result_.slices = writer->slices();
  if (writer->left_out() > 0) {
    result_.notes.push_back(fmt::format(
        "{} events of kinds that this format has no place for are left out", writer->left_out()));
  }
  return std::move(result_);
}

}  // namespace

MergeResult merge_traces(const TraceSources& sources, const MergeOptions& options) {
  return Merger(sources, options).run();
}

}  // namespace dstrain::trace
