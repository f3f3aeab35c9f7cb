#pragma once

#include <ATen/core/Tensor.h>

#include "engine/comm/communicator.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"

namespace dstrain::ops {

/// (act(x gate^T) * (x up^T)) down^T: x [M, D], gate_up [2F, D] holds gate, then up, down [N, F]
/// -> [M, N]. Equal to swiglu_linear(linear(x, gate_up), down), bit for bit; in FP8 but for
/// gradients that are too small for e5m2. In one operator, so that in FP8 the gradient of gate and
/// up is written in codes alone, with a scale from what forward has found (swiglu.h). Saves what
/// `linear` saves, x gate^T with x up^T, and as `keep` says (gelu_linear) their product. Shazeer
/// 2020, arXiv:2002.05202, eq. 5. Ranks that share both matrices (null: one rank alone) gather x
/// and sum the output, as by linear_of_gathered and summed_linear: x [m, D] -> [m, N].
[[nodiscard]] at::Tensor gated_linear(const Measured& x_MD, Parameter& gate_up, Parameter& down,
                                      Communicator* ranks = nullptr, Keep keep = Keep::nothing,
                                      GateActivation gate = GateActivation::silu);

}  // namespace dstrain::ops
