#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "engine/trace/figures.h"
#include "engine/trace/intervals.h"

namespace dstrain::trace {
namespace {

/// From its launch until its start an event is in the queue of its stream.
Interval queued(const GpuEvent& event) {
  return {std::min(event.launch_end_ns, event.start_ns), event.start_ns};
}

/// Whether the stream is that of the compute lane; where lanes are not known: has a kernel that
/// computes.
bool computes(const RankEvents& rank, const std::vector<const GpuEvent*>& events,
              std::uint16_t stream) {
  if (rank.runs.empty()) {
    return std::ranges::any_of(
        events, [](const GpuEvent* event) { return event->type == EventType::compute; });
  }
  return std::ranges::any_of(rank.runs, [&](const ActionRun& run) {
    return run.stream == stream && runs_blocks(rank.program[run.action].lane);
  });
}

Launches::Queue queue_of(std::vector<Interval> waiting, std::int64_t stream) {
  struct Change {
    std::int64_t time = 0;
    int by = 0;
  };
  std::vector<Change> changes;
  double area = 0;
  std::int64_t first = waiting.front().begin, last = waiting.front().end;
  for (const Interval& i : waiting) {
    changes.push_back({i.begin, 1});
    changes.push_back({i.end, -1});
    area += static_cast<double>(i.end - i.begin);
    first = std::min(first, i.begin);
    last = std::max(last, i.end);
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.time, a.by) < std::tie(b.time, b.by);
  });
  Launches::Queue queue;
  queue.stream = stream;
  std::int64_t present = 0;
  for (const Change& change : changes) {
    present += change.by;
    queue.max = std::max(queue.max, present);
  }
  queue.mean = last > first ? area / static_cast<double>(last - first) : 0.0;
  return queue;
}

}  // namespace

std::optional<Launches> launches(const RankEvents& rank) {
  if (!rank.launches || rank.events.empty()) return std::nullopt;
  Launches result;
  std::vector<double> delays;
  std::vector<Interval> occupied;
  std::vector<std::vector<Interval>> waiting(rank.streams.size());
  std::vector<std::vector<const GpuEvent*>> by_stream(rank.streams.size());
  std::int64_t first = rank.events.front().start_ns, last = first;
  for (const GpuEvent& event : rank.events) {
    first = std::min(first, event.start_ns);
    last = std::max(last, event.end_ns());
    occupied.push_back({event.start_ns, event.end_ns()});
    by_stream[event.stream].push_back(&event);
    if (event.launch_end_ns == GpuEvent::kNoLaunch) {
      ++result.without;
      continue;
    }
    const std::int64_t delay = event.start_ns - event.launch_end_ns;
    if (delay < 0) ++result.negative;
    if (event.long_launch) ++result.longer_than_kernel;
    delays.push_back(static_cast<double>(delay));
    occupied.push_back(queued(event));
    waiting[event.stream].push_back(queued(event));
  }
  std::sort(delays.begin(), delays.end());
  result.count = static_cast<std::int64_t>(delays.size());
  if (!delays.empty()) {
    double sum = 0;
    for (const double delay : delays) sum += delay;
    result.mean = sum / static_cast<double>(delays.size());
    result.median = static_cast<std::int64_t>(quantile(delays, 0.5));
    result.p95 = static_cast<std::int64_t>(quantile(delays, 0.95));
    result.max = static_cast<std::int64_t>(delays.back());
  }
  const IntervalSet window = {{first, last}};
  result.host_bound = (last - first) - length(intersected(window, united(std::move(occupied))));

  const ActionRuns runs(rank);
  std::map<std::pair<std::uint16_t, std::int64_t>, std::size_t> first_of;  // event of a run
  for (std::size_t i = 0; i < runs.runs().size(); ++i)
    first_of[{runs.runs()[i].stream, runs.runs()[i].start_ns}] = i;
  std::map<std::string, std::int64_t> dependencies;
  /// Part of what is left of a gap behind the launch until another lane's action had ended.
  const auto dependency = [&](const GpuEvent& event, std::int64_t from) {
    const auto run = first_of.find({event.stream, event.start_ns});
    if (run == first_of.end()) return std::int64_t{0};
    const auto other = runs.last_of_other_lanes(run->second);
    if (!other) return std::int64_t{0};
    const ActionRun& waited = runs.runs()[*other];
    const std::int64_t ns =
        std::clamp<std::int64_t>(waited.end_ns - from, 0, event.start_ns - from);
    if (ns > 0) dependencies[runs.action(waited).name] += ns;
    return ns;
  };
  for (std::size_t stream = 0; stream < by_stream.size(); ++stream) {
    auto& events = by_stream[stream];
    std::ranges::sort(events, by_time);
    // A stream of copies or communication stands still by design.
    if (!computes(rank, events, static_cast<std::uint16_t>(stream))) events.clear();
    std::int64_t free = events.empty() ? 0 : events.front()->end_ns();
    for (std::size_t i = 1; i < events.size(); ++i) {
      const GpuEvent* event = events[i];
      const std::int64_t gap = event->start_ns - free;
      if (gap > 0) {
        const std::int64_t host = host_part(*event, *events[i - 1], free);
        const std::int64_t other = dependency(*event, free + host);
        result.gap_host += host;
        result.gap_dependency += other;
        result.gap_rest += gap - host - other;
      }
      free = std::max(free, event->end_ns());
    }
    if (!waiting[stream].empty())
      result.queues.push_back(queue_of(std::move(waiting[stream]), rank.streams[stream]));
  }
  for (const auto& [name, ns] : dependencies) result.dependencies.push_back({name, ns});
  std::ranges::stable_sort(result.dependencies, std::greater(), &NamedTime::ns);
  std::sort(result.queues.begin(), result.queues.end(),
            [](const auto& a, const auto& b) { return a.stream < b.stream; });
  return result;
}

std::vector<CopyRate> copy_rates(const std::vector<GpuEvent>& events, const Names& names) {
  std::map<std::string, std::pair<CopyRate, std::vector<double>>> found;
  for (const GpuEvent& event : events) {
    if (event.bytes <= 0 || event.duration_ns <= 0) continue;
    auto& [row, rates] = found[names[event.name]];
    row.name = names[event.name];
    ++row.count;
    row.bytes += event.bytes;
    row.ns += event.duration_ns;
    rates.push_back(static_cast<double>(event.bytes) /
                    (static_cast<double>(event.duration_ns) * 1e-9));
  }
  std::vector<CopyRate> rows;
  for (auto& [name, entry] : found) {
    auto& [row, rates] = entry;
    std::sort(rates.begin(), rates.end());
    row.p5 = quantile(rates, 0.05);
    row.median = quantile(rates, 0.5);
    row.p95 = quantile(rates, 0.95);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace dstrain::trace
