#pragma once

#include <ATen/core/Tensor.h>

namespace dstrain::ops {

/// The class that scores highest in each row of `logits` [B, V], the lower one of equals, into
/// `classes` [B] int64, and the logarithm of its probability into `logarithms` [B] fp32. Has no
/// gradient.
void likely_class(const at::Tensor& logits, const at::Tensor& classes,
                  const at::Tensor& logarithms);

}  // namespace dstrain::ops
