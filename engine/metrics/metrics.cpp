#include "engine/metrics/metrics.h"

#include <exception>

#include "engine/base/log.h"
#include "engine/metrics/sinks.h"

namespace dstrain {
namespace {

/// The sinks that every run has; each gives null where the options ask for none.
constexpr std::unique_ptr<MetricsSink> (*kSinks[])(const MetricsOptions&) = {
    make_metric_lines, make_event_lines, make_tensorboard};

}  // namespace

MetricsWriter::MetricsWriter(const MetricsOptions& options) {
  for (const auto make : kSinks) {
    std::unique_ptr<MetricsSink> sink = make(options);
    if (!sink) continue;
    attempt([&] { sink->open(); });
    sinks_.push_back(sink.get());
    own_.push_back(std::move(sink));
  }
}

MetricsWriter::~MetricsWriter() = default;

template <class Write>
void MetricsWriter::attempt(const Write& write) {
  try {
    write();
  } catch (const std::exception& error) {
    if (failed_writes_++ > 0) return;
    first_problem_ = error.what();
    log_warning("metrics are incomplete from here on: {}", first_problem_);
  }
}

void MetricsWriter::step(const StepMetrics& metrics) {
  for (MetricsSink* sink : sinks_) attempt([&] { sink->write(metrics); });
}

void MetricsWriter::evaluation(const EvaluationMetrics& metrics) {
  for (MetricsSink* sink : sinks_) attempt([&] { sink->write(metrics); });
}

void MetricsWriter::event(std::string_view kind, std::int64_t step,
                          std::vector<std::pair<std::string, std::string>> fields) {
  const MetricsEvent event{.kind = kind, .step = step, .fields = std::move(fields)};
  for (MetricsSink* sink : sinks_) attempt([&] { sink->event(event); });
}

}  // namespace dstrain
