#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/base/gpu_limits.h"
#include "engine/kernels/dtype.h"

/// Convolutions of images of three channels on tensor cores, without windows in memory: arguments
/// and the GPU version. The rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

struct DirectShape {
  std::int64_t sample_stride, row_stride, column_stride, channel_stride;  ///< elements of x
  std::int64_t samples;
  int height, width;  ///< of x
  int out_height, out_width;
  int kernel, stride;
  int before;  ///< zeros above and to the left
  int out;     ///< channels of the result
};

inline constexpr int kDirectChannels = 3;  ///< of the image

/// Whether the kernels serve this convolution of 16-bit numbers.
[[nodiscard]] constexpr bool direct_fits(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                         std::int64_t stride) {
  return in == kDirectChannels &&
         ((kernel == 7 && stride == 2 && out == 64) || (kernel == 3 && stride == 1 && out == 64) ||
          (kernel == 3 && stride == 2 && out == 32));
}

/// Columns of the output that a tile of backward has at most: the second number on GPUs whose
/// blocks have too little shared memory for the first.
inline constexpr int kDirectColumns = 128, kNarrowDirectColumns = 112;
/// Dynamic shared memory of backward.
[[nodiscard]] std::size_t direct_backward_bytes(const DirectShape& shape, int columns);
[[nodiscard]] int direct_backward_columns(const DirectShape& shape, const GpuLimits& limits);

/// y = relu(round(conv(x)) + bias), where these are asked for: the same numbers as by a pass over
/// what the convolution wrote.
struct DirectConv {
  const void* x;       ///< images of any strides
  const void* weight;  ///< [out, 3, kernel, kernel]
  const void* bias;    ///< [out] of dtype; null: none
  void* y;             ///< [samples, out_height, out_width, out]
  DirectShape shape;
  bool relu;
  DType dtype;  ///< of 16 bits
};

/// grad_weight += the gradient of the weight.
struct DirectConvBackward {
  const void* x;
  const void* grad_y;  ///< [samples, out_height, out_width, out]
  float* partial;      ///< scratch, [direct_partials(...), out * 3 * kernel^2]
  float* grad_weight;  ///< [out, 3, kernel, kernel]
  DirectShape shape;
  DType dtype;
};
/// Partial sums of a result [samples, out_height, out_width].
[[nodiscard]] std::int64_t direct_partials(std::int64_t samples, int out_height, int out_width);

namespace cuda {
/// Throw Error{internal} where direct_fits says no, and for fp32.
void direct_conv(const DirectConv& args, cudaStream_t stream);
void direct_conv_backward(const DirectConvBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
