#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "engine/kernels/linear/output_gradient.h"

/// What is needed of an operator's gradient, in an autograd context.
namespace dstrain::ops {

inline void keep_needs(torch::autograd::AutogradContext* context, const GradientNeeds& needs) {
  context->saved_data["column_sums"] = needs.column_sums;
  context->saved_data["maxima"] = needs.maxima;
}

[[nodiscard]] inline GradientNeeds kept_needs(torch::autograd::AutogradContext* context) {
  return {.column_sums = context->saved_data.at("column_sums").toBool(),
          .maxima = context->saved_data.at("maxima").toBool()};
}

}  // namespace dstrain::ops
