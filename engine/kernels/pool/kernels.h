#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"

/// Max pooling of images [samples, height, width, channels], dense: arguments and the GPU version. The rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

struct PoolShape {
  std::int64_t samples;
  std::int64_t height, width;          ///< of the input
  std::int64_t out_height, out_width;  ///< (height + 2 before - kernel) / stride + 1
  std::int64_t channels;
  int kernel;  ///< at most 15
  int stride;
  int before;  ///< rows and columns around the image that are never the largest; below kernel
};

/// y = the largest element of each window, nan where one is nan; `place` says which, row by row
/// from 0, the first among equal ones.
struct MaxPool {
  const void* x;        ///< [samples, height, width, channels]
  void* y;              ///< [samples, out_height, out_width, channels]
  std::uint8_t* place;  ///< as y; null: not wanted
  PoolShape shape;
  DType dtype;
};

/// grad_x = the sum of grad_y over the windows whose largest element it was; in fp32, rounded once.
struct MaxPoolBackward {
  const void* grad_y;
  const std::uint8_t* place;
  void* grad_x;
  PoolShape shape;
  DType dtype;
};

namespace cuda {
void max_pool(const MaxPool& args, cudaStream_t stream);
void max_pool_backward(const MaxPoolBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
