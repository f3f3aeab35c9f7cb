#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/append_file.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/metrics/metric_table.h"
#include "engine/metrics/sinks.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// JSON has no nan or inf.
Json to_json(double value, bool may_be_unknown) {
  if (std::isfinite(value)) return value;
  if (may_be_unknown) return nullptr;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}
Json to_json(std::int64_t value, bool) { return value; }

template <class Metrics>
std::string to_line(const char* kind, const Metrics& metrics,
                    std::span<const Metric<Metrics>> rows) {
  Json json = {{"kind", kind}};
  for (const Metric<Metrics>& row : rows) {
    std::visit(
        [&](auto value) {
          if (row.left_out && !std::isfinite(static_cast<double>(metrics.*value))) return;
          json[std::string(row.name)] = to_json(metrics.*value, row.may_be_unknown);
        },
        row.value);
  }
  return json_text(json) + "\n";
}

class MetricLines final : public MetricsSink {
 public:
  MetricLines(fs::path path, std::int64_t resumed_step)
      : path_(std::move(path)), resumed_step_(resumed_step) {}

  [[nodiscard]] std::string_view name() const override { return "metrics.jsonl"; }
  /// Goes on with a file whose old lines could not be dropped.
  void open() override {
    std::exception_ptr problem;
    try {
      if (resumed_step_ >= 0) truncate_metrics(path_, resumed_step_);
    } catch (...) {
      problem = std::current_exception();
    }
    file_.open(path_);
    if (problem) std::rethrow_exception(problem);
  }
  void write(const StepMetrics& metrics) override {
    file_.append(to_line("step", metrics, step_metrics()));
  }
  void write(const EvaluationMetrics& metrics) override {
    file_.append(to_line("evaluation", metrics, evaluation_metrics()));
  }

 private:
  fs::path path_;
  std::int64_t resumed_step_;
  AppendFile file_;
};

class EventLines final : public MetricsSink {
 public:
  explicit EventLines(fs::path path) : path_(std::move(path)) {}

  [[nodiscard]] std::string_view name() const override { return "events.jsonl"; }
  void open() override { file_.open(path_); }
  void event(const MetricsEvent& event) override {
    Json json = {{"kind", event.kind},
                 {"step", event.step},
                 {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))}};
    for (const auto& [key, value] : event.fields) json[key] = value;
    file_.append(json_text(json) + "\n");
  }

 private:
  fs::path path_;
  AppendFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_metric_lines(const MetricsOptions& options) {
  return std::make_unique<MetricLines>(options.metrics, options.resumed_step);
}

std::unique_ptr<MetricsSink> make_event_lines(const MetricsOptions& options) {
  return std::make_unique<EventLines>(options.events);
}

void truncate_metrics(const fs::path& path, std::int64_t step) {
  if (!path_exists(path)) return;
  const std::string content = read_file(path);
  std::string kept;
  for (std::size_t begin = 0; begin < content.size();) {
    const std::size_t end = content.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line = std::string_view(content).substr(begin, end + 1 - begin);
    begin = end + 1;
    const nlohmann::json json = json_or_null(line);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    if (json["step"].get<std::int64_t>() <= step) kept += line;
  }
  if (kept.size() != content.size()) write_file_atomically(path, kept);
}

}  // namespace dstrain
