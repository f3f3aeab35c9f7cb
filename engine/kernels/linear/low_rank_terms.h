#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/kernels/ops.h"

/// Low-rank terms of a linear map in the order of their columns in u [M, rank of all]; not for
/// other layers.
namespace dstrain::ops {

using Terms = std::vector<LowRankTerm>;

[[nodiscard]] std::int64_t rank_of(const Terms& terms);

/// By term: its columns of [M, rank of all].
[[nodiscard]] std::vector<at::Tensor> by_term(const at::Tensor& all, const Terms& terms);

/// u: dropout(x) a^T of each term. On a GPU, where numbers have 16 bits and sizes are multiples of
/// 8, masks are drawn inside the product (kernels::LowRankRows).
[[nodiscard]] at::Tensor narrow_rows(const at::Tensor& x, const Terms& terms);

/// The gradient of u, [M, rank of all], where it is `wanted`; adds dy^T u to the gradient of each b
/// that is trained.
[[nodiscard]] at::Tensor narrow_gradient(const at::Tensor& dy, const at::Tensor& u,
                                         const Terms& terms, bool wanted);

/// Adds du^T dropout(x) to the gradient of each a that is trained, and returns the gradient of x
/// through all terms; nothing where not `for_input`. x may be undefined where no a is trained.
[[nodiscard]] at::Tensor wide_gradient(const at::Tensor& du, const at::Tensor& x,
                                       const Terms& terms, bool for_input);

/// The same of one term through x = act(gate) up, which a kernel makes again: the gradient of gate
/// and up. `gate_up` [M, 2K] holds gate, then up; `dh` is the gradient of x but for the term. Only
/// where gated_in_kernels: on a GPU, with numbers of 16 bits and sizes that are multiples of 8.
[[nodiscard]] at::Tensor gated_gradient(const at::Tensor& du, const at::Tensor& dh,
                                        const at::Tensor& gate_up, GateActivation gate,
                                        const Terms& terms);
[[nodiscard]] bool gated_in_kernels(const at::Tensor& gate_up, const Terms& terms);

}  // namespace dstrain::ops
