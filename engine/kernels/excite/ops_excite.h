#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/batch_norm/ops_batch_norm.h"
#include "engine/kernels/conv/conv.h"
#include "engine/kernels/excite/excite.h"
#include "engine/kernels/parameter.h"

/// Squeeze and excitation behind a depthwise convolution, with its gradients; rules in
/// engine/kernels/ops.h, legend in batch_norm.h.
namespace dstrain::ops {

/// conv(h * gate) without bias, of h = activation(norm(depthwise(activation(norm(x))))) and the
/// gates that follow from its means over the image: the rest of an inverted residual. `before`
/// null: x is convolved as it is.
struct ExcitedDepthwise {
  const BatchNormCall* before = nullptr;
  ConvShape depthwise;
  Parameter& depthwise_weight;
  const BatchNormCall& after;
  ExciteCall excite;
  ConvShape project;
  Parameter& project_weight;
};
/// x [B, H, W, in] -> [B, H', W', out]. Saves x, what the depthwise convolution gives, the
/// statistics, the means, and `Gates`; h and the scaled h are made again in backward. On a GPU
/// everything that depends on an image is in the passes of the norms.
[[nodiscard]] at::Tensor excited_depthwise(const at::Tensor& x_BHWC, const ExcitedDepthwise& of);

}  // namespace dstrain::ops
