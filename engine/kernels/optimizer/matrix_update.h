#pragma once

#include <ATen/core/Tensor.h>

/// What a rule needs that updates whole matrices (Muon) between its momentum and its step.
namespace dstrain::optimizer {

/// Nearest semi-orthogonal matrix to x [R, C] (fp32 or bf16), with singular values in about
/// [0.7, 1.2] in the place of 1: the quintic Newton-Schulz iteration of Muon (Jordan et al. 2024,
/// https://kellerjordan.github.io/posts/muon) with the coefficients of torch.optim.Muon, which
/// computes in bf16 always. [R, C] of x's dtype, dense.
[[nodiscard]] at::Tensor orthogonalize(const at::Tensor& x, int iterations);

}  // namespace dstrain::optimizer
