#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"

/// The windows of a convolution as rows of a matrix, so that the convolution is a product with its
/// weight: for images of few channels, for which libraries are slow. Arguments and the GPU version;
/// the rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

/// columns[output pixel, (channel * kernel + i) * kernel + j] = x at row oy * stride - before + i
/// and column ox * stride - before + j, zero outside, which is the order of a weight [out,
/// channels, kernel, kernel]. What lies beyond channels * kernel^2 is zero.
struct ImageColumns {
  const void* x;                                                          ///< images of any strides
  std::int64_t sample_stride, row_stride, column_stride, channel_stride;  ///< elements of x
  void* columns;  ///< [samples * out_height * out_width, width]
  std::int64_t samples;
  int height, width;  ///< of x
  int out_height, out_width;
  int channels;
  int kernel, stride;
  int before;         ///< zeros above and to the left
  int columns_width;  ///< a multiple of 8, not below channels * kernel^2
  DType dtype;
};

namespace cuda {
void image_columns(const ImageColumns& args, cudaStream_t stream);
}
}  // namespace dstrain::kernels
