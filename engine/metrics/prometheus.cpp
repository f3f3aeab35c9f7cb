#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "engine/base/file.h"
#include "engine/metrics/metric_table.h"
#include "engine/metrics/sinks.h"

namespace dstrain {
namespace {

using PrometheusClock = std::chrono::steady_clock;
constexpr auto kBetweenFiles = std::chrono::seconds(15);

std::string escaped_label(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

class Prometheus final : public MetricsSink {
 public:
  Prometheus(std::filesystem::path path, const std::string& run)
      : path_(std::move(path)), run_(escaped_label(run)) {}
  ~Prometheus() override {
    try {
      if (changed_) publish();
    } catch (const std::exception&) {
      // An earlier write has said it.
    }
  }

  [[nodiscard]] std::string_view name() const override { return "Prometheus' file"; }
  void write(const StepMetrics& metrics) override { take(metrics, step_metrics(), "train"); }
  void write(const EvaluationMetrics& metrics) override {
    take(metrics, evaluation_metrics(), "evaluation");
    publish();
  }

 private:
  template <class Metrics>
  void take(const Metrics& metrics, std::span<const Metric<Metrics>> table, const char* kind) {
    for (const Metric<Metrics>& row : table) {
      std::visit(
          [&](auto value) {
            const auto number = static_cast<double>(metrics.*value);
            if (row.may_be_unknown && std::isnan(number)) return;
            std::string name = fmt::format("dstrain_{}_{}", kind, row.name);
            std::ranges::replace(name, '/', '_');  // no character of a gauge's name
            values_[name] = number;
          },
          row.value);
    }
    changed_ = true;
    if (PrometheusClock::now() - published_ >= kBetweenFiles) publish();
  }

  static std::string number_text(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "+Inf" : "-Inf";
    return fmt::format("{}", number);
  }

  void publish() {
    std::string text;
    for (const auto& [name, number] : values_)
      text += fmt::format("# TYPE {} gauge\n{}{{run=\"{}\"}} {}\n", name, name, run_,
                          number_text(number));
    write_file_atomically(path_, text);
    published_ = PrometheusClock::now();
    changed_ = false;
  }

  std::filesystem::path path_;
  std::string run_;
  std::map<std::string, double> values_;
  bool changed_ = false;
  PrometheusClock::time_point published_ = PrometheusClock::now() - 2 * kBetweenFiles;
};

}  // namespace

std::unique_ptr<MetricsSink> make_prometheus(const MetricsOptions& options) {
  if (options.prometheus.empty()) return nullptr;
  return std::make_unique<Prometheus>(options.prometheus, options.run);
}

}  // namespace dstrain
