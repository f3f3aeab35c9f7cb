#include "engine/trace/rewrite.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "engine/base/json.h"
#include "engine/trace/output_file.h"
#include "engine/trace/scanner.h"

namespace dstrain::trace {
namespace {

constexpr int kMadeProcess = 1000;  ///< pid of the rows that are made
constexpr std::size_t kMaxQueuePoints = 4000;

struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  void add(std::int64_t from, std::int64_t to) {
    begin = end == 0 ? from : std::min(begin, from);
    end = std::max(end, to);
  }
};

/// A run of an action on the host.
struct HostRun {
  Span span;
  std::int64_t step = 0;
  int action = -1;
  std::size_t run = 0;  ///< index in Recording::runs
};

bool on_device(std::string_view category) {
  return category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset";
}
bool launches(std::string_view category) {
  return category == "cuda_runtime" || category == "cuda_driver";
}

/// From the regions on the host: who launched what.
class HostSide {
 public:
  explicit HostSide(const Recording& recording);

  struct Owner {
    std::int64_t step = 0;
    int action = -1;
  };
  /// Owner of the device's event that began at `start` with that correlation; nothing where that is
  /// of no traced step.
  [[nodiscard]] std::optional<Owner> owner(std::int64_t correlation, std::int64_t start) const;
  [[nodiscard]] std::optional<std::int64_t> launched_at(std::int64_t correlation) const;
  [[nodiscard]] const std::vector<HostRun>& runs() const { return runs_; }
  [[nodiscard]] const std::string& incomplete() const { return incomplete_; }

 private:
  struct Launch {
    std::int64_t correlation = 0;
    std::int64_t start = 0;
    bool by_training_thread = false;
  };
  struct DeviceEvent {
    std::int64_t correlation = 0;
    std::int64_t start = 0;
  };
  /// What a graph's actions ran on the device.
  struct Replay {
    std::vector<std::int64_t> starts;  ///< in order
    std::vector<ReplayedPart> parts;   ///< empty where they do not fit
  };
  [[nodiscard]] const Launch* find(std::int64_t correlation) const;
  /// The run or step around a launch.
  [[nodiscard]] static const HostRun* around(const std::vector<HostRun>& spans,
                                             const Launch& launch);
  void match_replays(const Recording& recording, const std::vector<DeviceEvent>& events);

  std::vector<HostRun> runs_;
  std::vector<HostRun> steps_;
  std::map<std::size_t, Replay> replays_;  ///< by HostRun::run
  std::vector<Launch> launches_;           ///< by correlation
  std::string incomplete_;
};

HostSide::HostSide(const Recording& recording) {
  std::map<std::string, int, std::less<>> known;
  for (const RecordedAction& action : recording.actions) known.emplace(action.name, 0);
  struct Region {
    Span span;
    std::string name;
  };
  std::vector<Region> regions;
  std::string thread;
  std::vector<std::pair<Launch, std::string>> launched;
  std::vector<DeviceEvent> device_events;
  Scanner scanner(recording.source);
  constexpr std::string_view kStep = "ProfilerStep#";
  for (Event event; scanner.next(event);) {
    if (event.phase != 'X') continue;
    const Span span = {event.start_ns, event.start_ns + event.duration_ns};
    if (event.category == "user_annotation") {
      const std::string name = unescape(event.name);
      if (name.starts_with(kStep)) {
        steps_.push_back({.span = span, .step = std::atoll(name.c_str() + kStep.size())});
        thread = event.tid;
      } else if (known.contains(name)) {
        regions.push_back({span, name});
      }
    } else if (launches(event.category)) {
      if (const auto correlation = find_integer(event.args, "correlation"))
        launched.push_back({{*correlation, event.start_ns}, std::string(event.tid)});
    } else if (recording.graphs && on_device(event.category)) {
      if (const auto correlation = find_integer(event.args, "correlation"))
        device_events.push_back({*correlation, event.start_ns});
    }
  }
  if (scanner.problems() > 0) {
    incomplete_ = fmt::format("the profiler's file is damaged in {} places, first at byte {}: {}",
                              scanner.problems(), scanner.first_problems().front().offset,
                              scanner.first_problems().front().what);
  }
  for (auto& [launch, tid] : launched) {
    launch.by_training_thread = tid == thread;
    launches_.push_back(launch);
  }
  std::ranges::sort(launches_, {}, &Launch::correlation);
  const auto by_begin = [](const auto& a, const auto& b) { return a.span.begin < b.span.begin; };
  std::ranges::sort(steps_, by_begin);
  std::ranges::sort(regions, by_begin);
  // The host began the actions in the order of the recording; a region that the profiler lost is
  // passed over.
  std::size_t next = 0;
  for (const Region& region : regions) {
    std::size_t run = next;
    const auto name = [&](std::size_t r) -> const std::string& {
      return recording.actions[static_cast<std::size_t>(recording.runs[r].action)].name;
    };
    while (run < recording.runs.size() && name(run) != region.name) ++run;
    if (run == recording.runs.size()) continue;
    runs_.push_back({.span = region.span,
                     .step = recording.runs[run].step,
                     .action = recording.runs[run].action,
                     .run = run});
    next = run + 1;
  }
  if (runs_.size() != recording.runs.size() && incomplete_.empty()) {
    incomplete_ =
        fmt::format("the profiler kept {} of {} actions", runs_.size(), recording.runs.size());
  }
  match_replays(recording, device_events);
}

void HostSide::match_replays(const Recording& recording, const std::vector<DeviceEvent>& events) {
  for (const DeviceEvent& event : events) {
    const Launch* launch = find(event.correlation);
    if (launch == nullptr || !launch->by_training_thread) continue;
    const HostRun* run = around(runs_, *launch);
    if (run != nullptr && !recording.runs[run->run].replayed.empty())
      replays_[run->run].starts.push_back(event.start);
  }
  for (auto& [run, replay] : replays_) {
    std::ranges::sort(replay.starts);
    const RecordedRun& recorded = recording.runs[run];
    std::int64_t captured = 0;
    for (const ReplayedPart& part : recorded.replayed) captured += part.device_events;
    if (captured == static_cast<std::int64_t>(replay.starts.size())) {
      replay.parts = recorded.replayed;
    } else if (incomplete_.empty()) {
      incomplete_ = fmt::format(
          "step {}: a graph from {} on has {} kernels, copies and fills, {} were seen: they are "
          "given to no action",
          recorded.step, recording.actions[static_cast<std::size_t>(recorded.action)].name,
          captured, replay.starts.size());
    }
  }
}

const HostSide::Launch* HostSide::find(std::int64_t correlation) const {
  const auto found = std::ranges::lower_bound(launches_, correlation, {}, &Launch::correlation);
  return found == launches_.end() || found->correlation != correlation ? nullptr : &*found;
}

std::optional<std::int64_t> HostSide::launched_at(std::int64_t correlation) const {
  const Launch* launch = find(correlation);
  return launch == nullptr ? std::nullopt : std::optional(launch->start);
}

const HostRun* HostSide::around(const std::vector<HostRun>& spans, const Launch& launch) {
  auto behind = std::ranges::upper_bound(spans, launch.start, {},
                                         [](const HostRun& run) { return run.span.begin; });
  if (behind == spans.begin()) return nullptr;
  --behind;
  return launch.start <= behind->span.end ? &*behind : nullptr;
}

std::optional<HostSide::Owner> HostSide::owner(std::int64_t correlation, std::int64_t start) const {
  const Launch* launch = find(correlation);
  if (launch == nullptr || !launch->by_training_thread) return {};
  if (const HostRun* run = around(runs_, *launch)) {
    const auto replay = replays_.find(run->run);
    if (replay == replays_.end()) return Owner{run->step, run->action};
    const auto& [starts, parts] = replay->second;
    std::int64_t place = std::ranges::lower_bound(starts, start) - starts.begin();
    for (const ReplayedPart& part : parts) {
      if (place < part.device_events) return Owner{run->step, part.action};
      place -= part.device_events;
    }
    return Owner{run->step, -1};
  }
  if (const HostRun* step = around(steps_, *launch)) return Owner{step->step, -1};
  return {};
}

/// Writes events one after the other.
class EventList {
 public:
  explicit EventList(OutputFile& file) : file_(file) {}

  void add(std::string_view object) {
    file_.write(first_ ? "\n  " : ",\n  ");
    file_.write(object);
    first_ = false;
  }
  void row(std::string_view category, const std::string& name, int pid, int tid, const Span& span,
           std::int64_t base, const nlohmann::ordered_json& args) {
    add(fmt::format(
        R"({{"ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {}}})",
        category, json_text(nlohmann::json(name)), pid, tid, microseconds(span.begin - base),
        microseconds(span.end - span.begin), json_text(args)));
  }
  void counter(const char* name, int pid, std::int64_t at, std::int64_t base, std::int64_t value) {
    add(fmt::format(
        R"({{"ph": "C", "name": "{}", "pid": {}, "tid": 0, "ts": {}, "args": {{"value": {}}}}})",
        name, pid, microseconds(at - base), value));
  }
  void name_row(const char* what, int pid, int tid, const std::string& name) {
    add(fmt::format(
        R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "ts": 0, "args": {{"name": {}}}}})",
        what, pid, tid, json_text(nlohmann::json(name))));
  }

 private:
  static std::string microseconds(std::int64_t ns) {
    return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
  }
  OutputFile& file_;
  bool first_ = true;
};

/// The spans of the rows that are made.
struct MadeRows {
  explicit MadeRows(const Recording& recording);

  std::map<std::int64_t, Span> steps;
  /// Phases repeat with each micro-batch: by the number of the phase, from the first step on.
  std::map<int, Span> phases;
  std::map<std::pair<std::int64_t, int>, Span> actions;
  /// Number of the phase of an action of the compute lane; the work of other lanes would stretch
  /// phases over each other.
  std::map<std::pair<std::int64_t, int>, int> phase_of;
  struct Phase {
    std::int64_t step = 0;
    std::string name;
  };
  std::vector<Phase> all_phases;
  std::vector<std::pair<std::int64_t, int>> queue;  ///< +1 launched, -1 started

  void add(std::int64_t step, int action, std::int64_t begin, std::int64_t end) {
    // Steps and phases are what the compute lane does: loads and gathers of a step may run beside
    // the end of the step before.
    const auto phase = phase_of.find({step, action});
    if (action < 0 || phase != phase_of.end()) steps[step].add(begin, end);
    if (action < 0) return;
    if (phase != phase_of.end()) phases[phase->second].add(begin, end);
    actions[{step, action}].add(begin, end);
  }
  void write(const Recording& recording, const HostSide& host, std::int64_t base, EventList& list);
  void write_queue(std::int64_t base, EventList& list);
};

MadeRows::MadeRows(const Recording& recording) {
  const auto add_action = [&](std::int64_t step, int number) {
    const RecordedAction& action = recording.actions[static_cast<std::size_t>(number)];
    if (action.lane != "compute") return;
    if (all_phases.empty() || all_phases.back().step != step ||
        all_phases.back().name != action.phase)
      all_phases.push_back({step, action.phase});
    phase_of[{step, number}] = static_cast<int>(all_phases.size()) - 1;
  };
  for (const RecordedRun& run : recording.runs) {
    if (run.replayed.empty()) add_action(run.step, run.action);
    for (const ReplayedPart& part : run.replayed) add_action(run.step, part.action);
  }
}

void MadeRows::write_queue(std::int64_t base, EventList& list) {
  if (queue.empty()) return;
  std::ranges::sort(queue);
  // The longest of each stretch of time: a point per launch would double the file.
  const std::int64_t width = std::max<std::int64_t>(
      1, (queue.back().first - queue.front().first) / static_cast<std::int64_t>(kMaxQueuePoints));
  std::int64_t length = 0, longest = 0, stretch = queue.front().first;
  for (const auto& [at, change] : queue) {
    if (at >= stretch + width) {
      list.counter("queue", kMadeProcess, stretch, base, longest);
      stretch = at;
      longest = length;
    }
    length += change;
    longest = std::max(longest, length);
  }
  list.counter("queue", kMadeProcess, stretch, base, longest);
}

void MadeRows::write(const Recording& recording, const HostSide& host, std::int64_t base,
                     EventList& list) {
  std::vector<std::string> rows = {"steps", "phases"};
  const auto row_of = [&](const std::string& lane) {
    const auto found = std::ranges::find(rows, lane);
    if (found != rows.end()) return static_cast<int>(found - rows.begin());
    rows.push_back(lane);
    return static_cast<int>(rows.size()) - 1;
  };
  for (const auto& [step, span] : steps)
    list.row("dstrain_step", fmt::format("ProfilerStep#{}", step), kMadeProcess, 0, span, base,
             {{"step", step}});
  for (const auto& [number, span] : phases) {
    const Phase& phase = all_phases[static_cast<std::size_t>(number)];
    list.row("dstrain_phase", phase.name, kMadeProcess, 1, span, base, {{"step", phase.step}});
  }
  for (const auto& [key, span] : actions) {
    const RecordedAction& action = recording.actions[static_cast<std::size_t>(key.second)];
    list.row("dstrain_lane", action.name, kMadeProcess, row_of(action.lane), span, base,
             {{"action", key.second}, {"step", key.first}});
  }
  list.name_row("process_name", kMadeProcess, 0, "steps, phases and lanes");
  for (std::size_t row = 0; row < rows.size(); ++row)
    list.name_row("thread_name", kMadeProcess, static_cast<int>(row), rows[row]);
  for (const HostRun& run : host.runs()) {
    const RecordedRun& recorded = recording.runs[run.run];
    if (recorded.reserved == 0) continue;
    list.counter("memory allocated", kMadeProcess, run.span.end, base, recorded.allocated);
    list.counter("memory reserved", kMadeProcess, run.span.end, base, recorded.reserved);
  }
  write_queue(base, list);
}

/// `object` with two more arguments.
std::string with_owner(const Event& event, const HostSide::Owner& owner) {
  const auto place = static_cast<std::size_t>(event.args.data() - event.object.data()) + 1;
  const bool empty = event.args.find('"') == std::string_view::npos;
  return fmt::format("{}\"step\": {}, \"action\": {}{}{}", event.object.substr(0, place),
                     owner.step, owner.action, empty ? "" : ", ", event.object.substr(place));
}

/// The keys of the profiler's file beside the events, which it wrote before them.
std::string header(const Recording& recording, const Scanner& scanner,
                   const std::string& incomplete) {
  nlohmann::ordered_json json;
  json["schemaVersion"] = 1;
  for (const char* key : {"deviceProperties", "cupti_version", "cuda_runtime_version",
                          "cuda_driver_version", "displayTimeUnit", "baseTimeNanoseconds"}) {
    if (const auto text = scanner.top(key)) {
      const nlohmann::json value = json_or_null(*text);
      if (!value.is_null()) json[key] = value;
    }
  }
  json["distributedInfo"] = {{"backend", recording.backend},
                             {"rank", recording.rank},
                             {"world_size", recording.world_size}};
  json["dstrain"] = {{"run", recording.run},
                     {"host", recording.host},
                     {"program", recording.program},
                     {"steps", {recording.first_step, recording.last_step}},
                     {"warmup", recording.warmup},
                     {"graphs", recording.graphs},
                     {"device", recording.cuda ? "cuda" : "cpu"},
                     {"incomplete", incomplete}};
  // In lines: HolisticTraceAnalysis looks for "rank": with a space behind it.
  std::string text = json_text(json, 1);
  text.erase(text.find_last_of('}'));
  return text + ",\"traceEvents\":[";
}

}  // namespace

RewriteResult rewrite(const Recording& recording) {
  const HostSide host(recording);
  RewriteResult result{.incomplete = host.incomplete()};
  Scanner scanner(recording.source);
  OutputFile file(recording.target);
  EventList list(file);
  MadeRows rows(recording);
  file.write(header(recording, scanner, host.incomplete()));
  for (Event event; scanner.next(event);) {
    const auto correlation =
        on_device(event.category) ? find_integer(event.args, "correlation") : std::nullopt;
    const auto owner = correlation ? host.owner(*correlation, event.start_ns) : std::nullopt;
    if (!owner) {
      list.add(event.object);
      continue;
    }
    ++result.device_events;
    if (owner->action < 0) ++result.without_action;
    rows.add(owner->step, owner->action, event.start_ns, event.start_ns + event.duration_ns);
    rows.queue.emplace_back(*host.launched_at(*correlation), 1);
    rows.queue.emplace_back(event.start_ns, -1);
    list.add(with_owner(event, *owner));
  }
  if (!recording.cuda) {
    for (const HostRun& run : host.runs())
      rows.add(run.step, run.action, run.span.begin, run.span.end);
  }
  rows.write(recording, host, scanner.base_ns(), list);
  file.write("\n]}\n");
  result.bytes = file.close();
  std::error_code ignored;
  std::filesystem::remove(recording.source, ignored);
  return result;
}

}  // namespace dstrain::trace
