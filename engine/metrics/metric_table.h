#pragma once

#include <span>
#include <string_view>
#include <variant>

#include "engine/metrics/metrics.h"

namespace dstrain {

/// One figure of `Metrics`, which is StepMetrics or EvaluationMetrics.
template <class Metrics>
struct Metric {
  std::string_view name;  ///< in metrics.jsonl
  std::string_view unit;  ///< "s", "bytes", "1/s"; empty: a plain number
  std::variant<double Metrics::*, std::int64_t Metrics::*> value;
  bool may_be_unknown = false;  ///< null in metrics.jsonl where it is not finite
  std::string_view tag = {};    ///< TensorBoard's name of it; empty: it is not shown there
  double tag_scale = 1;         ///< from `unit` to the unit that the tag names
  bool left_out = false;        ///< of a line of metrics.jsonl, too, where it is not known
};

/// What is written of a step and of an evaluation, in the order of metrics.jsonl.
[[nodiscard]] std::span<const Metric<StepMetrics>> step_metrics();
[[nodiscard]] std::span<const Metric<EvaluationMetrics>> evaluation_metrics();

}  // namespace dstrain
