#include <cmath>
#include <vector>

#include "engine/base/append_file.h"
#include "engine/base/clock.h"
#include "engine/metrics/metric_table.h"
#include "engine/metrics/sinks.h"
#include "engine/metrics/tensorboard.h"

namespace dstrain {
namespace {

template <class Metrics>
std::vector<Scalar> to_scalars(const Metrics& metrics, std::span<const Metric<Metrics>> rows) {
  std::vector<Scalar> scalars;
  for (const Metric<Metrics>& row : rows) {
    if (row.tag.empty()) continue;
    std::visit(
        [&](auto value) {
          const auto number = static_cast<double>(metrics.*value);
          if (row.may_be_unknown && std::isnan(number)) return;
          scalars.push_back({row.tag, number * row.tag_scale});
        },
        row.value);
  }
  return scalars;
}

class TensorBoard final : public MetricsSink {
 public:
  TensorBoard(std::filesystem::path folder, std::int64_t resumed_step)
      : folder_(std::move(folder)), resumed_step_(resumed_step) {}

  [[nodiscard]] std::string_view name() const override { return "TensorBoard's file"; }
  void open() override {
    std::filesystem::create_directories(folder_);
    const double now = unix_time_s();
    file_.open(folder_ / tensorboard::file_name(now));
    file_.append(tensorboard::record(tensorboard::version_event(now)));
    if (resumed_step_ >= 0)
      file_.append(tensorboard::record(tensorboard::start_event(now, resumed_step_ + 1)));
  }
  void write(const StepMetrics& metrics) override {
    append(metrics.step, to_scalars(metrics, step_metrics()));
  }
  void write(const EvaluationMetrics& metrics) override {
    append(metrics.step, to_scalars(metrics, evaluation_metrics()));
  }

 private:
  void append(std::int64_t step, const std::vector<Scalar>& scalars) {
    file_.append(tensorboard::record(tensorboard::scalar_event(unix_time_s(), step, scalars)));
  }

  std::filesystem::path folder_;
  std::int64_t resumed_step_;
  AppendFile file_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_tensorboard(const MetricsOptions& options) {
  if (options.tensorboard.empty()) return nullptr;
  return std::make_unique<TensorBoard>(options.tensorboard, options.resumed_step);
}

}  // namespace dstrain
