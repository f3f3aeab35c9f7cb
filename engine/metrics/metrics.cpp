#include "engine/metrics/metrics.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

#include "engine/base/log.h"
#include "engine/metrics/sinks.h"

namespace dstrain {
namespace {

/// The sinks that every run has; each gives null where the options ask for none.
constexpr std::unique_ptr<MetricsSink> (*kSinks[])(const MetricsOptions&) = {
    make_metric_lines, make_event_lines, make_tensorboard, make_prometheus, make_wandb};

constexpr int kMaxFailures = 3;  ///< in a row

using PatienceClock = std::chrono::steady_clock;

std::chrono::milliseconds left_of_patience(PatienceClock::time_point end) {
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::ceil<std::chrono::milliseconds>(end - PatienceClock::now()));
}

}  // namespace

struct MetricsWriter::Problems {
  mutable std::mutex mutex;
  std::vector<MissingMetrics> sinks;

  void count(std::string_view sink, const std::string& problem) {
    const std::lock_guard lock(mutex);
    const auto known = std::ranges::find(sinks, sink, &MissingMetrics::sink);
    if (known != sinks.end()) {
      ++known->writes;
      return;
    }
    sinks.push_back({.sink = std::string(sink), .writes = 1, .first_problem = problem});
    log_warning("{} is incomplete from here on: {}", sink, problem);
  }
};

namespace {

/// A sink of the writer's own, which its thread shares.
struct OwnSink {
  std::unique_ptr<MetricsSink> sink;
  int failures = 0;  ///< in a row
};

template <class Problems, class Write>
bool attempt(Problems& problems, MetricsSink& sink, const Write& write) {
  try {
    write(sink);
    return true;
  } catch (const std::exception& error) {
    problems.count(sink.name(), error.what());
    return false;
  }
}

template <class Problems, class Write>
void attempt_unless_broken(Problems& problems, OwnSink& own, const Write& write) {
  if (own.failures >= kMaxFailures) return problems.count(own.sink->name(), "");
  own.failures = attempt(problems, *own.sink, write) ? 0 : own.failures + 1;
}

std::vector<std::unique_ptr<MetricsSink>> make_sinks(const MetricsOptions& options) {
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  for (const auto make : kSinks) {
    if (std::unique_ptr<MetricsSink> sink = make(options)) sinks.push_back(std::move(sink));
  }
  return sinks;
}

}  // namespace

struct MetricsWriter::Entry {
  Entry(std::unique_ptr<MetricsSink> sink, const std::shared_ptr<Problems>& problems)
      : name(sink->name()),
        own(std::make_shared<OwnSink>(OwnSink{.sink = std::move(sink)})),
        queue([own = own, problems] {
          attempt_unless_broken(*problems, *own, [](MetricsSink& opened) { opened.open(); });
        }) {}

  std::string name;
  std::shared_ptr<OwnSink> own;
  std::uint64_t late = 0;  ///< pieces that the last flush() has waited for in vain
  BackgroundQueue queue;   ///< ends first
};

MetricsWriter::MetricsWriter(const MetricsOptions& options) : MetricsWriter(make_sinks(options)) {}

MetricsWriter::MetricsWriter(std::vector<std::unique_ptr<MetricsSink>> sinks)
    : problems_(std::make_shared<Problems>()) {
  for (std::unique_ptr<MetricsSink>& sink : sinks)
    entries_.push_back(std::make_unique<Entry>(std::move(sink), problems_));
}

MetricsWriter::~MetricsWriter() {
  const auto end = PatienceClock::now() + BackgroundQueue::kPatience;
  for (const auto& entry : entries_) entry->queue.stop(left_of_patience(end));
}

/// `write` is copied to the threads, and must own what it writes.
template <class Write>
void MetricsWriter::each(const Write& write) {
  for (MetricsSink* sink : added_) attempt(*problems_, *sink, write);
  for (const auto& entry : entries_) {
    entry->queue.push([own = entry->own, problems = problems_, write] {
      attempt_unless_broken(*problems, *own, write);
    });
  }
}

void MetricsWriter::step(const StepMetrics& metrics) {
  each([metrics](MetricsSink& sink) { sink.write(metrics); });
}

void MetricsWriter::evaluation(const EvaluationMetrics& metrics) {
  each([metrics](MetricsSink& sink) { sink.write(metrics); });
}

void MetricsWriter::host(const HostMetrics& metrics) {
  each([metrics](MetricsSink& sink) { sink.write(metrics); });
}

void MetricsWriter::event(std::string_view kind, std::int64_t step,
                          std::vector<std::pair<std::string, std::string>> fields) {
  each([kind = std::string(kind), step, fields = std::move(fields)](MetricsSink& sink) {
    sink.event({.kind = kind, .step = step, .fields = fields});
  });
}

bool MetricsWriter::flush() {
  const auto end = PatienceClock::now() + BackgroundQueue::kPatience;
  bool all = true;
  for (const auto& entry : entries_) {
    const bool done = entry->queue.flush(left_of_patience(end));
    entry->late = done ? 0 : entry->queue.waiting();
    all = all && done;
  }
  return all;
}

std::vector<MissingMetrics> MetricsWriter::missing() const {
  const std::lock_guard lock(problems_->mutex);
  std::vector<MissingMetrics> all = problems_->sinks;
  for (const auto& entry : entries_) {
    const auto lost = static_cast<std::int64_t>(entry->queue.dropped() + entry->late);
    if (lost == 0) continue;
    const auto known = std::ranges::find(all, entry->name, &MissingMetrics::sink);
    if (known != all.end()) {
      known->writes += lost;
    } else {
      all.push_back({.sink = entry->name,
                     .writes = lost,
                     .first_problem = "it takes lines more slowly than steps are done, or none"});
    }
  }
  return all;
}

}  // namespace dstrain
