#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/batch_norm/batch_norm_gpu.h"

/// A batch norm whose output is scaled by gates, on a GPU: the passes over the image that its means
/// and gradients take. Legend in batch_norm.h.
namespace dstrain::ops {

/// [B, C]: means over the image of activation(x scale + shift).
[[nodiscard]] at::Tensor squeezed_norm(const at::Tensor& x, const GpuStatistics& statistics,
                                       ImageActivation activation);

/// From one pass over x and dy, the gradient of y = activation(norm(x)) * gate.
struct GatedSums {
  at::Tensor grad_gate;  ///< [B, C] fp32
  at::Tensor sums;       ///< [B, 4, C], as kernels::GateBackwardSums has them
  at::Tensor y;          ///< undefined where no gate is given
};
/// gate [B, C] fp32, or undefined: y is not wanted.
[[nodiscard]] GatedSums gated_sums(const at::Tensor& x, const at::Tensor& dy,
                                   const GpuStatistics& statistics, ImageActivation activation,
                                   const at::Tensor& gate);

/// [1, 2, C]: the sums of gpu_gradient_sums for the gradient dy * gate + grad_mean / pixels; gate
/// and grad_mean [B, C] fp32.
[[nodiscard]] at::Tensor gated_norm_sums(const GatedSums& sums, const at::Tensor& gate,
                                         const at::Tensor& grad_mean, const at::Tensor& x,
                                         const at::Tensor& valid);

}  // namespace dstrain::ops
