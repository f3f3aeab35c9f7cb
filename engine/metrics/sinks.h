#pragma once

#include <memory>

#include "engine/metrics/metrics.h"

namespace dstrain {

// One file each. Null where the options ask for none.

/// metrics.jsonl: an object per step and evaluation, as metric_table.h says. A number that is not
/// finite is the string "nan", "inf" or "-inf", a share that is not known null.
[[nodiscard]] std::unique_ptr<MetricsSink> make_metric_lines(const MetricsOptions& options);
/// events.jsonl: an object per event, with the UTC time.
[[nodiscard]] std::unique_ptr<MetricsSink> make_event_lines(const MetricsOptions& options);
/// The metrics that have a tag, in a new event file of TensorBoard.
[[nodiscard]] std::unique_ptr<MetricsSink> make_tensorboard(const MetricsOptions& options);

}  // namespace dstrain
