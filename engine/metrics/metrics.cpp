#include "engine/metrics/metrics.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "engine/base/log.h"
#include "engine/metrics/sinks.h"

namespace dstrain {
namespace {

/// The sinks that every run has; each gives null where the options ask for none.
constexpr std::unique_ptr<MetricsSink> (*kSinks[])(const MetricsOptions&) = {
    make_metric_lines, make_event_lines, make_tensorboard, make_prometheus, make_wandb};

constexpr int kMaxFailures = 3;  ///< in a row

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

struct MetricsWriter::Own {
  struct Entry {
    std::unique_ptr<MetricsSink> sink;
    int failures = 0;  ///< in a row
  };

  explicit Own(const MetricsOptions& options) {
    for (const auto make : kSinks) {
      if (std::unique_ptr<MetricsSink> sink = make(options))
        entries.push_back({.sink = std::move(sink)});
    }
  }
  template <class Write>
  void each(Problems& problems, const Write& write);

  std::vector<Entry> entries;
};

namespace {

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

}  // namespace

template <class Write>
void MetricsWriter::Own::each(Problems& problems, const Write& write) {
  for (Entry& entry : entries) {
    if (entry.failures >= kMaxFailures) {
      problems.count(entry.sink->name(), "");
      continue;
    }
    const bool good = attempt(problems, *entry.sink, write);
    entry.failures = good ? 0 : entry.failures + 1;
  }
}

MetricsWriter::MetricsWriter(const MetricsOptions& options)
    : problems_(std::make_shared<Problems>()),
      own_(std::make_shared<Own>(options)),
      queue_([own = own_, problems = problems_] {
        own->each(*problems, [](MetricsSink& sink) { sink.open(); });
      }) {}

MetricsWriter::~MetricsWriter() = default;

/// `write` is copied to the thread, and must own what it writes.
template <class Write>
void MetricsWriter::each(const Write& write) {
  for (MetricsSink* sink : added_) attempt(*problems_, *sink, write);
  queue_.push([own = own_, problems = problems_, write] { own->each(*problems, write); });
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

bool MetricsWriter::flush() { return queue_.flush(); }

std::vector<MissingMetrics> MetricsWriter::missing() const {
  const std::lock_guard lock(problems_->mutex);
  std::vector<MissingMetrics> all = problems_->sinks;
  if (const auto dropped = static_cast<std::int64_t>(queue_.dropped()); dropped > 0) {
    all.push_back({.sink = "all files",
                   .writes = dropped,
                   .first_problem = "the files take longer than the steps"});
  }
  return all;
}

}  // namespace dstrain
