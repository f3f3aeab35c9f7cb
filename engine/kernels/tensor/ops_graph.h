#pragma once

#include <ATen/core/Tensor.h>

namespace dstrain::ops {

/// x, with `inside` before it in the graph, which gets no gradient from it. Backward of a block
/// asks for the gradients of its inputs alone, and reaches only weights on a way to one: so x,
/// which is no input, leads to one.
[[nodiscard]] at::Tensor in_graph_of(const at::Tensor& x, const at::Tensor& inside);

}  // namespace dstrain::ops
