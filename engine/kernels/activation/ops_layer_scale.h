#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"

/// Branches that start small. Touvron et al. 2021, arXiv:2103.17239, sec. 3.
namespace dstrain::ops {

/// residual + scale x, where samples of `mask` skip the branch as in drop_path; a mask of share 0
/// leaves none out. x and residual are dense [B, ..., C], scale [C]. Saves x.
[[nodiscard]] at::Tensor layer_scale(const at::Tensor& x, Parameter& scale, const DropMask& mask,
                                     const at::Tensor& residual);

/// scale x of rows x [M, D], scale [D]. Saves x where the scale is trained.
[[nodiscard]] at::Tensor scale_columns(const at::Tensor& x_MD, Parameter& scale);

}  // namespace dstrain::ops
