#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/pool/kernels.h"
#include "engine/kernels/pool/ops_pool.h"

/// Max pooling and its gradient on a GPU or a CPU, without autograd: what the operators that
/// contain one are made of.
namespace dstrain::ops {

[[nodiscard]] kernels::PoolShape pool_kernel_shape(const at::Tensor& x, const PoolShape& shape);

/// The largest of each window, and where it was (kernels::MaxPool), a byte for each result.
struct Pooled {
  at::Tensor y, places;
};
[[nodiscard]] Pooled pooled(const at::Tensor& x, const PoolShape& shape);
/// The gradient of an image of these sizes [B, H, W, C].
[[nodiscard]] at::Tensor max_pool_gradient(const at::Tensor& dy, const at::Tensor& places,
                                           const PoolShape& shape, at::IntArrayRef sizes);

}  // namespace dstrain::ops
