#pragma once

namespace dstrain::kernels {

/// By what a gated MLP's gate is activated: x / (1 + exp(-x)), or GELU by tanh. Shazeer 2020,
/// arXiv:2002.05202, sec. 2.
enum class GateActivation { silu, gelu };

}  // namespace dstrain::kernels
