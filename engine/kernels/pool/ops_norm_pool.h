#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/batch_norm/ops_batch_norm.h"
#include "engine/kernels/conv/conv.h"
#include "engine/kernels/pool/ops_pool.h"

/// Max pooling behind a norm or a convolution with ReLU, whose image is made neither forward nor
/// backward on a GPU; rules in engine/kernels/ops.h.
namespace dstrain::ops {

/// Whether these operators serve such windows.
[[nodiscard]] bool norm_pool_fits(const PoolShape& shape);

/// max_pool(relu(norm(x))); the call's activation is ReLU. Saves x and the statistics, and where
/// the largest was, a byte for each result.
[[nodiscard]] at::Tensor batch_norm_max_pool(const at::Tensor& x_BHWC, const BatchNormCall& call,
                                             const PoolShape& pool);

/// max_pool(relu(conv(x) + bias)); `bias` null: none. Saves x, for the weight's gradient, and where
/// the largest was.
[[nodiscard]] at::Tensor conv_max_pool(const at::Tensor& x_BHWC, const ConvShape& shape,
                                       Parameter& weight, Parameter* bias, const PoolShape& pool);

}  // namespace dstrain::ops
