#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "engine/kernels/batch_norm/batch_norm_context.h"
#include "engine/kernels/batch_norm/batch_norm_gpu.h"
#include "engine/kernels/conv/conv.h"

/// A depthwise convolution between two batch norms on a GPU, without autograd: what the operators
/// that contain one are made of. Legend in batch_norm.h.
namespace dstrain::ops {

/// Whether the kernels serve x, which is on a GPU, and this shape.
[[nodiscard]] bool depthwise_has_kernel(const at::Tensor& x, const ConvShape& shape);

/// What the convolution gives, not normalised yet, and the statistics of both norms (GpuStatistics;
/// of the norm before undefined where there is none).
struct DepthwiseOutput {
  at::Tensor before, y, after;
};
/// x is normalised by `before`, where it is not null, as it is read.
[[nodiscard]] DepthwiseOutput depthwise_forward(const at::Tensor& x, const BatchNormCall* before,
                                                const ConvShape& shape, const Parameter& weight,
                                                const BatchNormCall& after);

/// What an autograd context keeps beside tensors.
void keep_depthwise(torch::autograd::AutogradContext* context, const BatchNormCall* before,
                    const ConvShape& shape, Parameter& weight, const BatchNormCall& after);

/// What backward has.
struct KeptDepthwise {
  at::Tensor x;
  DepthwiseOutput out;
  std::optional<KeptBatchNorm> before;
  Parameter& weight;
  ConvShape shape;
  KeptBatchNorm after;

  /// Whether anything before the norm behind needs a gradient.
  [[nodiscard]] bool further(bool for_input) const {
    return for_input || weight.trainable || (before && before->trains());
  }
};
[[nodiscard]] KeptDepthwise kept_depthwise(torch::autograd::AutogradContext* context,
                                           const at::Tensor& x, const DepthwiseOutput& out);

/// The gradient of the norm behind, dy * gate + mean / pixels, and [2, C] as gpu_finish_gradient
/// gives it; undefined: zero.
struct DepthwiseGradient {
  at::Tensor dy, slope_offset;
  at::Tensor gate = {}, mean = {};  ///< [B, C] fp32; undefined: 1 and 0
};
/// Adds the gradients of the convolution's weight and of the norm before. The gradient of x, or an
/// undefined tensor unless `for_input`.
[[nodiscard]] at::Tensor depthwise_backward(const KeptDepthwise& of, const DepthwiseGradient& with,
                                            bool for_input);

}  // namespace dstrain::ops
