#include "engine/trace/hta.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "engine/trace/hta_events.h"

namespace dstrain::trace {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<HtaEvent>;

constexpr std::size_t kKernels = 10;         // num_kernels
constexpr double kDurationRatio = 0.8;       // duration_ratio
constexpr std::int64_t kKernelDelayUs = 30;  // consecutive_kernel_delay
enum HtaType { kHtaCompute, kHtaCommunication, kHtaMemory, kHtaOther };
constexpr const char* kTypeNames[] = {"COMPUTATION", "COMMUNICATION", "MEMORY"};

HtaType hta_type(const std::string& name) {
  const bool nccl = name.starts_with("nccl") && name.find("Kernel", 4) != std::string::npos;
  if (nccl) return kHtaCommunication;
  if (name.starts_with("Memcpy") || name.starts_with("Memset") || name.starts_with("dma"))
    return kHtaMemory;
  const bool excluded =
      name.find("Memcpy") != std::string::npos || name.find("Sync") != std::string::npos;
  return excluded ? kHtaOther : kHtaCompute;
}

/// numpy's round.
double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::nearbyint(value * scale) / scale;
}
/// JSON has no NaN.
Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// numpy's linear quantile.
double hta_quantile(const std::vector<double>& sorted, double share) {
  const double at = static_cast<double>(sorted.size() - 1) * share;
  const auto low = static_cast<std::size_t>(std::floor(at));
  const double a = sorted[low], b = sorted[std::min(low + 1, sorted.size() - 1)];
  const double part = at - static_cast<double>(low);
  return part >= 0.5 ? b - (b - a) * (1 - part) : a + (b - a) * part;
}

/// From start to end; may be negative as HTA's durations are.
struct Span {
  std::int64_t start = 0, end = 0;
};

std::vector<Span> merged(Rows rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const HtaEvent& a, const HtaEvent& b) { return a.start < b.start; });
  std::vector<Span> spans;
  std::int64_t last = std::numeric_limits<std::int64_t>::max();  // of all before
  for (const HtaEvent& row : rows) {
    if (spans.empty() || row.start > last)
      spans.push_back({row.start, row.end()});
    else
      spans.back().end = std::max(spans.back().end, row.end());
    last = spans.size() == 1 && last == std::numeric_limits<std::int64_t>::max()
               ? row.end()
               : std::max(last, row.end());
  }
  return spans;
}

std::int64_t span_sum(const std::vector<Span>& spans) {
  std::int64_t sum = 0;
  for (const Span& span : spans) sum += span.end - span.start;
  return sum;
}

/// Time under each sum of the values of the types that are running; as HTA's running total.
std::map<int, std::int64_t> running_times(
    const std::vector<std::pair<int, std::vector<Span>>>& types) {
  struct Change {
    std::int64_t time = 0;
    int by = 0;
  };
  std::vector<Change> changes;
  for (const auto& [value, spans] : types)
    for (const Span& span : spans) {
      changes.push_back({span.start, value});
      changes.push_back({span.end, -value});
    }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.time < b.time; });
  std::map<int, std::int64_t> times;
  int running = 0;
  for (std::size_t i = 0; i + 1 < changes.size(); ++i) {
    running += changes[i].by;
    times[running] += changes[i + 1].time - changes[i].time;
  }
  return times;
}

Rows gpu_rows(const HtaRank& rank) {
  Rows rows;
  for (const HtaEvent& row : rank.rows)
    if (row.stream != -1) rows.push_back(row);
  return rows;
}

Rows of_hta_type(const Rows& rows, HtaType type, const Names& names) {
  Rows found;
  for (const HtaEvent& row : rows)
    if (hta_type(names[row.name]) == type) found.push_back(row);
  return found;
}

struct Aggregate {
  std::string name;
  std::vector<std::int64_t> values;
  std::int64_t sum = 0, max = 0, min = 0;
  double mean = 0, deviation = 0;

  void finish() {
    sum = 0;
    max = min = values.front();
    double running = 0, squares = 0, count = 0;
    for (const std::int64_t value : values) {
      sum += value;
      max = std::max(max, value);
      min = std::min(min, value);
      ++count;
      const double difference = static_cast<double>(value) - running;
      running += difference / count;
      squares += difference * (static_cast<double>(value) - running);
    }
    mean = static_cast<double>(sum) / count;
    deviation = values.size() > 1 ? std::sqrt(squares / (count - 1)) : 0.0;
  }
};

/// Names with their durations; beyond `kKernels` names their sums, the small ones as "others".
std::vector<Aggregate> aggregated(const Rows& rows, const Names& names) {
  std::map<std::string, Aggregate> by_name;
  for (const HtaEvent& row : rows) by_name[names[row.name]].values.push_back(row.duration);
  std::vector<Aggregate> list;
  for (auto& [name, aggregate] : by_name) {
    aggregate.name = name;
    aggregate.finish();
    list.push_back(std::move(aggregate));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const Aggregate& a, const Aggregate& b) { return a.sum > b.sum; });
  if (list.size() <= kKernels) return list;
  std::vector<double> sums;
  double sum = 0;
  for (const Aggregate& aggregate : list) sums.push_back(sum += static_cast<double>(aggregate.sum));
  std::vector<double> sorted = sums;
  std::sort(sorted.begin(), sorted.end());
  const double limit = hta_quantile(sorted, kDurationRatio);
  std::map<std::string, Aggregate> again;
  for (std::size_t i = 0; i < list.size(); ++i) {
    // HTA keeps negative sums by accident: its mask for "keep none" is "sum < 0".
    const bool small = list[i].sum >= 0 && (sums[i] > limit || i >= kKernels);
    const std::string name = small ? "others" : list[i].name;
    again[name].values.push_back(list[i].sum);
  }
  list.clear();
  for (auto& [name, aggregate] : again) {
    aggregate.name = name;
    aggregate.finish();
    list.push_back(std::move(aggregate));
  }
  return list;
}

Json kernel_breakdown(const std::vector<HtaRank>& ranks, const Names& names) {
  std::map<std::string, std::int64_t> types;
  struct KernelEntry {
    std::string type;
    int rank = 0;
    Aggregate aggregate;
  };
  std::vector<KernelEntry> kernels;
  for (const HtaRank& rank : ranks) {
    const Rows rows = gpu_rows(rank);
    std::vector<std::pair<int, std::vector<Span>>> by_type;
    for (const HtaType type : {kHtaCompute, kHtaCommunication, kHtaMemory}) {
      const Rows of_type = of_hta_type(rows, type, names);
      by_type.emplace_back(1 << type, merged(of_type));
      for (Aggregate& aggregate : aggregated(of_type, names))
        kernels.push_back({kTypeNames[type], rank.rank, std::move(aggregate)});
    }
    for (const auto& [running, time] : running_times(by_type)) {
      if (running <= 0 || time == 0) continue;
      std::string name;
      for (int type = 0; type < 3; ++type)
        if ((running & (1 << type)) != 0)
          name += (name.empty() ? "" : " overlapping ") + std::string(kTypeNames[type]);
      types[name] += time;
    }
  }
  std::vector<std::pair<std::string, std::int64_t>> sorted(types.begin(), types.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  double whole = 0;
  for (const auto& [name, time] : sorted) whole += static_cast<double>(time);
  Json type_rows = Json::array(), kernel_rows = Json::array();
  for (const auto& [name, time] : sorted)
    type_rows.push_back({{"kernel_type", name},
                         {"sum", time},
                         {"percentage", rounded(static_cast<double>(time) / whole * 100, 1)}});
  std::stable_sort(kernels.begin(), kernels.end(), [](const KernelEntry& a, const KernelEntry& b) {
    return std::tie(a.type, a.aggregate.name, a.rank) < std::tie(b.type, b.aggregate.name, b.rank);
  });
  for (const KernelEntry& entry : kernels) {
    const Aggregate& a = entry.aggregate;
    kernel_rows.push_back({{"name", a.name},
                           {"sum (us)", a.sum},
                           {"max (us)", a.max},
                           {"min (us)", a.min},
                           {"stddev", a.deviation},
                           {"mean (us)", a.mean},
                           {"kernel_type", entry.type},
                           {"rank", entry.rank}});
  }
  return {{"kernel_type", std::move(type_rows)}, {"kernels", std::move(kernel_rows)}};
}

Json temporal_breakdown(const HtaRank& rank, const Names& names) {
  const Rows rows = gpu_rows(rank);
  if (rows.empty()) return nullptr;
  const std::vector<Span> spans = merged(rows);
  const std::int64_t whole = spans.back().end - spans.front().start;
  const std::int64_t idle = whole - span_sum(spans);
  const std::int64_t compute = span_sum(merged(of_hta_type(rows, kHtaCompute, names)));
  const std::int64_t other = whole - compute - idle;
  if (idle > whole || compute > whole || other < 0) return nullptr;  // its assertions
  const auto share = [&](std::int64_t part) {
    return number_or_null(
        rounded(100 * (static_cast<double>(part) / static_cast<double>(whole)), 2));
  };
  return {{"rank", rank.rank},
          {"idle_time(us)", idle},
          {"compute_time(us)", compute},
          {"non_compute_time(us)", other},
          {"kernel_time(us)", whole},
          {"idle_time_pctg", share(idle)},
          {"compute_time_pctg", share(compute)},
          {"non_compute_time_pctg", share(other)}};
}

Json overlap(const HtaRank& rank, const Names& names) {
  const Rows rows = gpu_rows(rank);
  const auto communication = merged(of_hta_type(rows, kHtaCommunication, names));
  const auto compute = merged(of_hta_type(rows, kHtaCompute, names));
  const auto times = running_times({{1, communication}, {2, compute}});
  const auto both = times.find(3);
  const double ratio = static_cast<double>(both == times.end() ? 0 : both->second) /
                       static_cast<double>(span_sum(communication));
  return {{"rank", rank.rank}, {"comp_comm_overlap_pctg", number_or_null(rounded(100 * ratio, 2))}};
}

Json idle_breakdown(const HtaRank& rank) {
  std::unordered_map<std::int64_t, std::int64_t> starts;
  for (const HtaEvent& row : rank.rows) starts.try_emplace(row.index, row.start);
  std::vector<std::pair<std::int64_t, Rows>> streams;  // in the order of the file
  for (const HtaEvent& row : rank.rows) {
    if (row.stream == -1 || !row.kernel) continue;
    auto found = std::find_if(streams.begin(), streams.end(),
                              [&](const auto& s) { return s.first == row.stream; });
    if (found == streams.end()) found = streams.insert(streams.end(), {row.stream, {}});
    found->second.push_back(row);
  }
  Json result = Json::array();
  for (auto& [stream, rows] : streams) {
    std::stable_sort(rows.begin(), rows.end(),
                     [](const HtaEvent& a, const HtaEvent& b) { return a.start < b.start; });
    std::optional<std::int64_t> causes[3];  // host_wait, kernel_wait, other
    for (std::size_t i = 0; i < rows.size(); ++i) {
      int cause = 2;
      std::int64_t gap = 0;
      if (i > 0) {
        const std::int64_t before = rows[i - 1].end();
        gap = rows[i].start - before;
        const auto call = starts.find(rows[i].link);
        if (call != starts.end() && call->second > before)
          cause = 0;
        else if (gap < kKernelDelayUs)
          cause = 1;
      }
      causes[cause] = causes[cause].value_or(0) + gap;
    }
    std::int64_t whole = 0;
    for (const auto& cause : causes) whole += cause.value_or(0);
    constexpr const char* kCauses[] = {"host_wait", "kernel_wait", "other"};
    for (int cause = 0; cause < 3; ++cause)
      if (causes[cause])
        result.push_back(
            {{"rank", rank.rank},
             {"stream", stream},
             {"idle_category", kCauses[cause]},
             {"idle_time", *causes[cause]},
             {"idle_time_ratio",
              number_or_null(
                  rounded(static_cast<double>(*causes[cause]) / static_cast<double>(whole), 2))}});
  }
  return result;
}

Json queue_summary(const HtaRank& rank, const Names& names) {
  static const std::unordered_set<std::string> kCalls = {
      "cudaMemsetAsync",    "cudaMemcpyAsync",
      "cudaLaunchKernel",   "cudaLaunchKernelExC",
      "cuLaunchKernel",     "runFunction - job_prep_and_submit_for_execution",
      "hipLaunchKernel",    "hipExtModuleLaunchKernel",
      "hipMemcpyAsync",     "hipMemsetAsync",
      "hipMemcpyWithStream"};
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> streams_of;
  for (const HtaEvent& row : rank.rows)
    if (row.stream != -1) streams_of[row.correlation].push_back(row.stream);
  struct QueueChange {
    std::int64_t time = 0;
    int by = 0;
    std::int64_t stream = 0;
  };
  std::vector<QueueChange> calls, kernels;
  std::unordered_set<std::int64_t> called;
  for (const HtaEvent& row : rank.rows) {
    if (row.link <= 0 || !kCalls.contains(names[row.name])) continue;
    called.insert(row.correlation);
    const auto streams = streams_of.find(row.correlation);
    if (streams == streams_of.end()) return nullptr;  // HTA ends with an assertion
    for (const std::int64_t stream : streams->second) calls.push_back({row.start, 1, stream});
  }
  for (const HtaEvent& row : rank.rows)
    if (row.stream != -1 && called.contains(row.correlation))
      kernels.push_back({row.start, -1, row.stream});
  if (calls.size() != kernels.size()) return nullptr;
  calls.insert(calls.end(), kernels.begin(), kernels.end());
  std::stable_sort(calls.begin(), calls.end(),
                   [](const QueueChange& a, const QueueChange& b) { return a.time < b.time; });
  std::map<std::int64_t, std::vector<double>> lengths;
  for (const QueueChange& change : calls) {
    auto& of_stream = lengths[change.stream];
    of_stream.push_back((of_stream.empty() ? 0 : of_stream.back()) + change.by);
  }
  Json result = Json::array();
  for (auto& [stream, values] : lengths) {
    double sum = 0, squares = 0;
    for (const double value : values) sum += value;
    const double mean = sum / static_cast<double>(values.size());
    for (const double value : values) squares += (value - mean) * (value - mean);
    std::sort(values.begin(), values.end());
    result.push_back(
        {{"rank", rank.rank},
         {"stream", stream},
         {"count", values.size()},
         {"mean", mean},
         {"std", number_or_null(std::sqrt(squares / static_cast<double>(values.size() - 1)))},
         {"min", values.front()},
         {"25%", hta_quantile(values, 0.25)},
         {"50%", hta_quantile(values, 0.5)},
         {"75%", hta_quantile(values, 0.75)},
         {"max", values.back()}});
  }
  return result;
}

Json launch_stats(const HtaRank& rank, const Names& names) {
  static const std::unordered_set<std::string> kCalls = {
      "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync",
      "runFunction - job_prep_and_submit_for_execution"};
  std::unordered_set<std::int64_t> wanted;
  std::unordered_map<std::int64_t, std::vector<const HtaEvent*>> kernels;
  for (const HtaEvent& row : rank.rows) {
    if (kCalls.contains(names[row.name])) wanted.insert(row.correlation);
    if (row.stream != -1) kernels[row.correlation].push_back(&row);
  }
  Json result = Json::array();
  for (const HtaEvent& call : rank.rows) {
    if (call.stream != -1 || !wanted.contains(call.correlation)) continue;
    const auto launched = kernels.find(call.correlation);
    if (launched == kernels.end()) continue;
    for (const HtaEvent* kernel : launched->second)
      result.push_back({{"rank", rank.rank},
                        {"correlation", call.correlation},
                        {"cpu_duration", call.duration},
                        {"gpu_duration", kernel->duration},
                        {"launch_delay", std::max<std::int64_t>(0, kernel->start - call.end())}});
  }
  return result;
}

/// Adds rows, or a null for a rank that HTA fails on.
void append(Json& list, Json rows) {
  if (rows.is_array())
    for (Json& row : rows) list.push_back(std::move(row));
  else
    list.push_back(std::move(rows));
}

}  // namespace

nlohmann::ordered_json as_hta(const std::vector<std::filesystem::path>& files,
                              const std::vector<int>& ranks, bool salvage) {
  Names names;
  std::vector<HtaRank> loaded = load_hta_events(files, names, salvage);
  if (!ranks.empty())
    std::erase_if(loaded, [&](const HtaRank& rank) {
      return std::find(ranks.begin(), ranks.end(), rank.rank) == ranks.end();
    });
  Json temporal = Json::array(), overlaps = Json::array(), idle = Json::array(),
       queues = Json::array(), launched = Json::array();
  for (const HtaRank& rank : loaded) {
    append(temporal, temporal_breakdown(rank, names));
    append(overlaps, overlap(rank, names));
    append(idle, idle_breakdown(rank));
    append(queues, queue_summary(rank, names));
    append(launched, launch_stats(rank, names));
  }
  return {{"gpu_kernel_breakdown", kernel_breakdown(loaded, names)},
          {"temporal_breakdown", std::move(temporal)},
          {"comm_comp_overlap", std::move(overlaps)},
          {"idle_time_breakdown", std::move(idle)},
          {"queue_length_summary", std::move(queues)},
          {"cuda_kernel_launch_stats", std::move(launched)}};
}

}  // namespace dstrain::trace
