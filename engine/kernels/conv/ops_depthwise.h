#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/batch_norm/ops_batch_norm.h"
#include "engine/kernels/conv/conv.h"
#include "engine/kernels/parameter.h"

/// A depthwise convolution between two batch norms, with its gradients; rules in
/// engine/kernels/ops.h, legend in batch_norm.h.
namespace dstrain::ops {

/// activation(norm(conv(activation(norm(x))))): the middle of an inverted residual; `before` null:
/// x is convolved as it is. Saves x, the convolution's output and the statistics, like
/// batch_norm_conv and then batch_norm, which it is on a CPU. On a GPU the convolution normalises
/// what it reads, sums what it writes for the norm behind it, and in backward is one pass.
[[nodiscard]] at::Tensor depthwise_norm(const at::Tensor& x_BHWC, const BatchNormCall* before,
                                        const ConvShape& shape, Parameter& weight,
                                        const BatchNormCall& after);

}  // namespace dstrain::ops
