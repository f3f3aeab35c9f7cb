#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/kernels/pool/kernels.h"

/// Max pooling of what a norm, or a bias, and ReLU make of an image, without that in memory: of
/// arguments and the GPU version. The rules are in engine/kernels/kernels.h; scale,
/// shift and valid as in batch_norm/kernels.h. The gradient dz before the ReLU is the sum of grad_y
/// over the windows whose largest element it was and that are not zero.
namespace dstrain::kernels {

inline constexpr std::uint8_t kNoPlace = 255;  ///< of a window without a positive element

/// Windows of which a pixel and its three neighbours see no more than four.
[[nodiscard]] constexpr bool norm_pool_fits(std::int64_t kernel, std::int64_t stride,
                                            std::int64_t before) {
  return stride == 2 && ((kernel == 2 && before == 0) || (kernel == 3 && before == 1));
}

/// y = the largest round(relu(x * scale + shift)) of each window; `place` as MaxPool has it, or
/// kNoPlace; where nan is the largest, any.
struct NormMaxPool {
  const void* x;        ///< [samples, height, width, channels]
  const float* scale;   ///< [channels]; null: 1
  const float* shift;   ///< [channels]; null: 0
  void* y;              ///< [samples, out_height, out_width, channels]
  std::uint8_t* place;  ///< as y
  PoolShape shape;
  DType dtype;
};

/// Sums over samples and pixels of dz and of dz * (x - mean).
struct NormMaxPoolSums {
  const void* x;
  const std::uint8_t* place;
  const void* grad_y;
  const float* mean;          ///< [channels]
  const std::int32_t* valid;  ///< [1]
  float* partial;             ///< [norm_pool_partials(shape), 2, channels]
  PoolShape shape;
  DType dtype;
};

/// grad_x = scale * dz + (x - mean) * slope + offset, or dz; and the sum of dz over pixels.
struct NormMaxPoolBackward {
  const void* x;  ///< null with the five that follow but `valid`: dz
  const float* mean;
  const float* scale;
  const float* slope;   ///< [channels]; null with offset: zero
  const float* offset;  ///< [channels]
  const std::int32_t* valid;
  const std::uint8_t* place;
  const void* grad_y;
  void* grad_x;
  float* grad_bias;  ///< [channels], to which the sum is added; null: not wanted
  float* partial;    ///< scratch, [norm_pool_partials(shape), channels]; null with grad_bias
  PoolShape shape;
  DType dtype;
};
[[nodiscard]] std::int64_t norm_pool_partials(const PoolShape& shape);

namespace cuda {
/// Throw Error{internal} where norm_pool_fits says no.
void norm_max_pool(const NormMaxPool& args, cudaStream_t stream);
void norm_max_pool_sums(const NormMaxPoolSums& args, cudaStream_t stream);
void norm_max_pool_backward(const NormMaxPoolBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
