#include <algorithm>
#include <cmath>

#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/optimizer/optimizer_rules.h"

namespace dstrain::kernels::reference {

using namespace dstrain::optimizer;

void finish_gradients(const FinishGradients& a) {
  float* control = a.control;
  const float scale = control[kLossScale];
  const double norm = std::sqrt(static_cast<double>(*a.sum)) / static_cast<double>(scale);
  control[kGradientNorm] = static_cast<float>(norm);
  control[kSkip] = std::isfinite(norm) ? 0.0f : 1.0f;
  adapt_loss_scale(control, std::isfinite(norm), a.loss_scaling);
  if (!std::isfinite(norm)) {
    control[kGradientFactor] = 0;
    control[kSkippedSteps] += 1;
    return;
  }
  const double clip =
      a.clip_norm > 0 ? std::min(1.0, static_cast<double>(a.clip_norm) / (norm + 1e-6)) : 1.0;
  control[kGradientFactor] = static_cast<float>(clip / static_cast<double>(scale));
  control[kAppliedSteps] += 1;
  control[kCorrection1] = bias_correction(a.beta1, control[kAppliedSteps]);
  control[kCorrection2] = bias_correction(a.beta2, control[kAppliedSteps]);
}

}  // namespace dstrain::kernels::reference
