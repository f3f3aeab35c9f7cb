#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/kernels/optimizer/loss_scale.h"

/// Between gradients and the update: arguments, the GPU version and the reference. The rules are in
/// engine/kernels/kernels.h.
namespace dstrain::kernels {

/// sum[0] += factor * sum of x^2.
struct AddSquares {
  const void* x;            ///< any alignment
  DType type = DType::f32;  ///< of x; or bf16
  float* partial;           ///< scratch, [kSquarePartials]
  float* sum;
  std::int64_t count;
  float factor;
};
inline constexpr std::int64_t kSquarePartials = 1024;

/// The decisions between gradients and update; see optimizer::finish_gradients.
struct FinishGradients {
  float* control;
  const float* sum;
  float clip_norm;
  optimizer::LossScaling loss_scaling;
  double beta1, beta2;
};

namespace cuda {
void add_squares(const AddSquares& args, cudaStream_t stream);
void finish_gradients(const FinishGradients& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void finish_gradients(const FinishGradients& args);
}  // namespace reference

}  // namespace dstrain::kernels
