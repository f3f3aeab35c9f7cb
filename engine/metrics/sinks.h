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

/// Gauges of the last step and evaluation in the text format of Prometheus, for node_exporter's
/// textfile collector: written at most every 15 seconds and at the end, renamed into place.
[[nodiscard]] std::unique_ptr<MetricsSink> make_prometheus(const MetricsOptions& options);
/// A run of Weights & Biases as `wandb sync` takes it, record by record, so that a killed run is
/// there, too.
[[nodiscard]] std::unique_ptr<MetricsSink> make_wandb(const MetricsOptions& options);

}  // namespace dstrain
