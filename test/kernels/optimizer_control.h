#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/kernels/optimizer/optimizer.h"

namespace dstrain::test {

/// What finish_gradients leaves in the control tensor, on the CPU, for update `step` = 1, 2, ...
inline at::Tensor control_at(int step, float gradient_factor = 1, float skip = 0) {
  using namespace optimizer;
  at::Tensor control = at::zeros({kControlSize});
  control[kLossScale] = 1;
  control[kAppliedSteps] = step - 1;
  finish_gradients(control, at::full({1}, 1, at::kFloat), {});
  control[kGradientFactor] = gradient_factor;
  control[kSkip] = skip;
  return control;
}

}  // namespace dstrain::test
