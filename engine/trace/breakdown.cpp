#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

#include "engine/trace/figures.h"
#include "engine/trace/intervals.h"

namespace dstrain::trace {
namespace {

IntervalSet of_type(const std::vector<GpuEvent>& events, EventType type) {
  std::vector<Interval> found;
  for (const GpuEvent& event : events)
    if (event.type == type) found.push_back({event.start_ns, event.end_ns()});
  return united(std::move(found));
}

}  // namespace

const char* type_name(EventType type) {
  switch (type) {
    case EventType::compute:
      return "compute";
    case EventType::communication:
      return "communication";
    case EventType::memory:
      return "memory";
  }
  return "";
}

double quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Breakdown breakdown(const std::vector<GpuEvent>& events) {
  Breakdown result;
  if (events.empty()) return result;
  std::int64_t first = events.front().start_ns, last = events.front().end_ns();
  for (const GpuEvent& event : events) {
    first = std::min(first, event.start_ns);
    last = std::max(last, event.end_ns());
  }
  const IntervalSet compute = of_type(events, EventType::compute);
  const IntervalSet communication = of_type(events, EventType::communication);
  const IntervalSet memory = of_type(events, EventType::memory);
  const IntervalSet compute_and_communication = intersected(compute, communication);

  result.events = static_cast<std::int64_t>(events.size());
  result.window = last - first;
  result.compute = length(compute);
  result.communication = length(communication);
  result.memory = length(memory);
  result.overlap = length(compute_and_communication);

  // Lengths of intersections give those of the disjoint sets.
  const std::int64_t all = length(intersected(compute_and_communication, memory));
  const std::int64_t compute_memory = length(intersected(compute, memory)) - all;
  const std::int64_t communication_memory = length(intersected(communication, memory)) - all;
  const std::int64_t compute_communication = result.overlap - all;
  auto& types = result.types;
  types[kCompute | kCommunication | kMemory] = all;
  types[kCompute | kCommunication] = compute_communication;
  types[kCompute | kMemory] = compute_memory;
  types[kCommunication | kMemory] = communication_memory;
  types[kCompute] = result.compute - compute_communication - compute_memory - all;
  types[kCommunication] = result.communication - compute_communication - communication_memory - all;
  types[kMemory] = result.memory - compute_memory - communication_memory - all;
  for (const std::int64_t part : types) result.busy += part;
  return result;
}

std::vector<NamedTime> exposed_by_label(const std::vector<GpuEvent>& events,
                                        const EventLabel& label) {
  const IntervalSet compute = of_type(events, EventType::compute);
  std::vector<const GpuEvent*> sorted;
  for (const GpuEvent& event : events)
    if (event.type == EventType::communication) sorted.push_back(&event);
  std::sort(sorted.begin(), sorted.end(), [](const GpuEvent* a, const GpuEvent* b) {
    return std::tuple(a->start_ns, a->end_ns(), a->stream, a->name, a->action) <
           std::tuple(b->start_ns, b->end_ns(), b->stream, b->name, b->action);
  });
  std::map<std::string, std::int64_t> sums;
  if (!sorted.empty()) {
    std::int64_t covered = sorted.front()->start_ns;  // communication before it has its owner
    std::size_t busy = 0;
    for (const GpuEvent* event : sorted) {
      std::int64_t begin = std::max(covered, event->start_ns);
      const std::int64_t end = event->end_ns();
      if (begin >= end) continue;
      covered = end;
      while (busy < compute.size() && compute[busy].end <= begin) ++busy;
      std::int64_t open = 0;
      for (std::size_t i = busy; i < compute.size() && compute[i].begin < end; ++i) {
        open += std::max<std::int64_t>(0, compute[i].begin - begin);
        begin = std::max(begin, compute[i].end);
      }
      open += std::max<std::int64_t>(0, end - begin);
      if (open > 0) sums[label(*event)] += open;
    }
  }
  std::vector<NamedTime> rows;
  for (const auto& [name, ns] : sums) rows.push_back({name, ns});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const NamedTime& a, const NamedTime& b) { return a.ns > b.ns; });
  return rows;
}

Histogram histogram_of(const std::vector<std::int64_t>& durations) {
  constexpr std::size_t kParts = 24;
  const auto [min, max] = std::minmax_element(durations.begin(), durations.end());
  Histogram histogram = {
      .from = std::max<std::int64_t>(1, *min), .to = std::max<std::int64_t>(1, *max), .counts = {}};
  histogram.counts.assign(histogram.to > histogram.from ? kParts : 1, 0);
  const double low = std::log(static_cast<double>(histogram.from));
  const double length = std::log(static_cast<double>(histogram.to)) - low;
  for (const std::int64_t ns : durations) {
    const double place = std::log(static_cast<double>(std::max(histogram.from, ns))) - low;
    const auto part = length > 0 ? static_cast<std::size_t>(place / length * kParts) : 0;
    ++histogram.counts[std::min(part, histogram.counts.size() - 1)];
  }
  return histogram;
}

void KernelTable::Sum::add(std::int64_t ns) {
  min = count == 0 ? ns : std::min(min, ns);
  max = count == 0 ? ns : std::max(max, ns);
  ++count;
  sum += ns;
  const double difference = static_cast<double>(ns) - mean;
  mean += difference / static_cast<double>(count);
  squares += difference * (static_cast<double>(ns) - mean);
  durations.push_back(ns);
}

void KernelTable::Sum::add(const Sum& other) {
  if (other.count == 0) return;
  if (count == 0) {
    *this = other;
    return;
  }
  const auto a = static_cast<double>(count), b = static_cast<double>(other.count);
  const double difference = other.mean - mean;
  squares += other.squares + difference * difference * a * b / (a + b);
  mean += difference * b / (a + b);
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  count += other.count;
  sum += other.sum;
  durations.insert(durations.end(), other.durations.begin(), other.durations.end());
}

void KernelTable::add(const std::vector<GpuEvent>& events, const EventLabel& label) {
  // A label is looked up once for all events that differ in nothing it depends on.
  std::map<std::tuple<EventType, std::uint32_t, std::uint32_t>, Sum> found;
  std::map<std::tuple<EventType, std::uint32_t, std::uint32_t>, const GpuEvent*> sample;
  std::vector<const GpuEvent*> sorted;
  sorted.reserve(events.size());
  for (const GpuEvent& event : events) sorted.push_back(&event);
  // Sums of doubles must not depend on the order of the file.
  std::sort(sorted.begin(), sorted.end(),
            [](const GpuEvent* a, const GpuEvent* b) { return a->duration_ns < b->duration_ns; });
  for (const GpuEvent* event : sorted) {
    const auto key = std::tuple(event->type, event->name, event->action);
    found[key].add(event->duration_ns);
    sample.try_emplace(key, event);
  }
  std::map<std::pair<EventType, std::string>, std::map<std::pair<std::int64_t, std::int64_t>, Sum>>
      labelled;
  for (const auto& [key, sum] : found) {
    auto& place = labelled[{std::get<0>(key), label(*sample[key])}][{sum.sum, sum.count}];
    place.add(sum);
  }
  for (const auto& [key, parts] : labelled)
    for (const auto& [order, sum] : parts) sums_[key].add(sum);
}

KernelRow KernelTable::row(EventType type, const std::string& name, const Sum& sum, double whole) {
  KernelRow row;
  row.type = type_name(type);
  row.name = name;
  row.count = sum.count;
  row.sum = sum.sum;
  row.min = sum.min;
  row.max = sum.max;
  row.mean = static_cast<double>(sum.sum) / static_cast<double>(sum.count);
  row.deviation = sum.count > 1 ? std::sqrt(sum.squares / static_cast<double>(sum.count - 1)) : 0.0;
  row.share = whole > 0 ? static_cast<double>(sum.sum) / whole : 0.0;
  std::vector<double> sorted(sum.durations.begin(), sum.durations.end());
  std::sort(sorted.begin(), sorted.end());
  row.p5 = quantile(sorted, 0.05);
  row.p25 = quantile(sorted, 0.25);
  row.median = quantile(sorted, 0.5);
  row.p75 = quantile(sorted, 0.75);
  row.p95 = quantile(sorted, 0.95);
  row.histogram = histogram_of(sum.durations);
  return row;
}

std::vector<KernelRow> KernelTable::rows(std::size_t top, std::vector<KernelRow>& rest) const {
  double whole = 0;
  for (const auto& [key, sum] : sums_) whole += static_cast<double>(sum.sum);
  std::vector<KernelRow> rows;
  for (const EventType type : {EventType::compute, EventType::communication, EventType::memory}) {
    std::vector<std::pair<std::string, const Sum*>> of_this;
    for (const auto& [key, sum] : sums_)
      if (key.first == type) of_this.emplace_back(key.second, &sum);
    std::stable_sort(of_this.begin(), of_this.end(),
                     [](const auto& a, const auto& b) { return a.second->sum > b.second->sum; });
    Sum others;
    for (std::size_t i = 0; i < of_this.size(); ++i) {
      if (i < top)
        rows.push_back(row(type, of_this[i].first, *of_this[i].second, whole));
      else
        others.add(*of_this[i].second);
    }
    if (others.count > 0) rest.push_back(row(type, "", others, whole));
  }
  return rows;
}

}  // namespace dstrain::trace
