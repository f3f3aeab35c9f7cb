#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

/// One step of an LSTM with its gradient; rules in engine/kernels/ops.h. Hochreiter & Schmidhuber
/// 1997, with the forget gate of Gers et al. 2000.
///
/// Legend: B samples, H width.
namespace dstrain::ops {

/// From the products of input and state, both [B, 4H] with biases and gates in PyTorch's order
/// (input, forget, cell, output), and the cell [B, H] fp32: the next state [B, H] of the products'
/// type and the next cell. Saves the gates and both cells.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> lstm_step(const at::Tensor& of_input,
                                                          const at::Tensor& of_state,
                                                          const at::Tensor& cell);

}  // namespace dstrain::ops
