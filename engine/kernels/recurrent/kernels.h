#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"

/// One step of an LSTM behind its two products: arguments and the GPU version. The
/// rules are in engine/kernels/kernels.h. Hochreiter & Schmidhuber 1997, with the forget gate of
/// Gers et al. 2000; gates in PyTorch's order: input, forget, cell, output.
namespace dstrain::kernels {

/// z = of_input + of_state; i, f, o = sigmoid(z), g = tanh(z) of their parts; next = f * cell + i *
/// g; state = o * tanh(next).
struct LstmStep {
  const void* of_input;       ///< [rows, 4 width]
  std::int64_t input_stride;  ///< elements from row to row of of_input
  const void* of_state;       ///< [rows, 4 width]
  const float* cell;          ///< [rows, width]
  void* gates;                ///< [rows, 4 width]: i, f, g, o
  float* next;                ///< [rows, width]
  void* state;                ///< [rows, width]
  std::int64_t rows, width;
  DType dtype;
};

/// The gradients of z and of the cell.
struct LstmStepBackward {
  const void* gates;       ///< as forward gave them
  const float* cell;       ///< [rows, width]
  const float* next;       ///< [rows, width]
  const void* grad_state;  ///< [rows, width]; null: zero
  const float* grad_next;  ///< [rows, width]; null: zero
  void* grad_z;            ///< [rows, 4 width]
  float* grad_cell;        ///< [rows, width]
  std::int64_t rows, width;
  DType dtype;
};

namespace cuda {
void lstm_step(const LstmStep& args, cudaStream_t stream);
void lstm_step_backward(const LstmStepBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
