#pragma once

#include "engine/base/philox.h"
#include "engine/kernels/optimizer/control.h"

/// The factor on the loss that keeps gradients in the range of fp16; free of ATen.
namespace dstrain::optimizer {

struct LossScaling {
  bool dynamic = false;
  int growth_interval = 2000;  ///< finite steps before the scale doubles
  int hysteresis = 1;        ///< non-finite steps before it halves; the next ones halve it at once
  bool consecutive = false;  ///< each finite step sets the count of hysteresis back; else growth
  float minimum = kMinLossScale;
};

/// What a step does to the scale and its counters (Micikevicius et al. 2018, arXiv:1710.03740,
/// sec. 3.2); hysteresis and minimum as DeepSpeed's DynamicLossScaler. The same on host and GPU. A
/// scale that starts outside of its limits stays there.
DSTRAIN_HOST_DEVICE void adapt_loss_scale(float* control, bool finite, const LossScaling& options) {
  control[kGoodSteps] = finite ? control[kGoodSteps] + 1 : 0;
  if (!options.dynamic) return;
  float& scale = control[kLossScale];
  float& tolerated = control[kToleratedSteps];
  if (!finite) {
    if (tolerated + 1 < static_cast<float>(options.hysteresis)) {
      tolerated += 1;
    } else if (scale > options.minimum) {
      scale = scale / 2 > options.minimum ? scale / 2 : options.minimum;
    }
    return;
  }
  if (options.consecutive) tolerated = 0;
  if (control[kGoodSteps] < static_cast<float>(options.growth_interval)) return;
  control[kGoodSteps] = 0;
  tolerated = 0;
  if (scale < kMaxLossScale) scale = scale * 2 < kMaxLossScale ? scale * 2 : kMaxLossScale;
}

}  // namespace dstrain::optimizer
