#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/kernels/ops.h"

/// Stochastic depth: samples skip a branch while training. Huang et al. 2016, arXiv:1603.09382.
namespace dstrain::ops {

/// residual + x / (1 - share), or the residual alone where the sample skips the branch; residual
/// undefined: 0. x is dense [B, ...] or has B * T rows; the mask is a pure function of its seed,
/// its place and the sample's number from 0 to `samples`, of `samples` = B. Saves nothing.
[[nodiscard]] at::Tensor drop_path(const at::Tensor& x, std::int64_t samples, const DropMask& mask,
                                   const at::Tensor& residual = {});

}  // namespace dstrain::ops
