#pragma once

/// What the tail of a step knows, on the device; free of ATen, so that kernels read it too.
namespace dstrain::optimizer {

/// Indices into the control tensor: fp32 [kControlSize] on the device.
enum ControlIndex {
  kLossScale,       ///< factor on the loss before backward
  kGoodSteps,       ///< finite steps since the loss scale changed
  kAppliedSteps,    ///< updates applied so far: the t of Adam's bias correction
  kSkippedSteps,    ///< updates skipped because a gradient was not finite
  kToleratedSteps,  ///< of them, those that the hysteresis of the loss scale has taken up
  kGradientNorm,    ///< of this step, loss scale removed; inf or nan when not finite
  kGradientFactor,  ///< what update multiplies gradients with: clip coefficient / loss scale
  kSkip,            ///< 1 when this step's update must not happen
  kCorrection1,     ///< 1 - beta1^t of Adam, t the updates applied with this one
  kCorrection2,     ///< 1 - beta2^t
  kControlSize
};

/// A dynamic loss scale stays within these, unless the recipe says otherwise: below 1 it would not
/// help, above 2^24 it never matters.
inline constexpr float kMinLossScale = 1.0f;
inline constexpr float kMaxLossScale = 16777216.0f;

}  // namespace dstrain::optimizer
