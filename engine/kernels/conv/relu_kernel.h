#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"

/// Backward of a ReLU behind a convolution with bias: arguments and the GPU version.
/// The rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

/// grad_z = 0 where y <= 0, else grad_y, and grad_bias += its sum over rows.
struct BiasReluBackward {
  const void* y;       ///< [rows, channels], what forward gave
  const void* grad_y;  ///< [rows, channels]
  void* grad_z;        ///< [rows, channels]; may alias grad_y
  float* grad_bias;    ///< [channels]; null: not wanted
  float* partial;      ///< scratch, [bias_relu_partials(rows, channels), channels]
  std::int64_t rows, channels;
  DType dtype;
};
[[nodiscard]] std::int64_t bias_relu_partials(std::int64_t rows, std::int64_t channels);

namespace cuda {
void bias_relu_backward(const BiasReluBackward& args, cudaStream_t stream);
}
}  // namespace dstrain::kernels
