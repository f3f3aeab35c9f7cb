#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/batch_norm/activation_math.h"
#include "engine/kernels/dtype.h"

/// Depthwise convolutions of images [samples, height, width, channels], which are dense (PyTorch's
/// channels-last layout), with the batch norms around them: arguments and the GPU version.
/// The rules are in engine/kernels/kernels.h; scale, shift and valid as in
/// batch_norm/kernels.h.
namespace dstrain::kernels {

/// Weight [channels, 1, kernel, kernel] of dtype. The output's element (oy, ox) starts at row oy *
/// stride - before of the input, likewise for columns; what lies outside is zero. So uneven padding
/// is a matter of the output's size.
struct DepthwiseShape {
  std::int64_t samples;
  std::int64_t height, width;          ///< of the input
  std::int64_t out_height, out_width;  ///< (height + before + after - kernel) / stride + 1
  std::int64_t channels;               ///< even
  int kernel;                          ///< 3 or 5
  int stride;                          ///< 1 or 2
  int before;                          ///< zeros above and to the left, below kernel
};

/// Whether the kernels serve this shape.
[[nodiscard]] constexpr bool depthwise_fits(const DepthwiseShape& s) {
  return (s.kernel == 3 || s.kernel == 5) && (s.stride == 1 || s.stride == 2) && s.before >= 0 &&
         s.before < s.kernel && s.channels % 2 == 0 && s.channels > 0 &&
         s.height * s.width * s.channels < (std::int64_t{1} << 31) &&
         s.samples < (std::int64_t{1} << 31);
}

/// y = conv(round(activation(x * scale + shift))), and sums of y - centre and of its square over
/// samples that count, for the batch norm that follows (BatchNormSums).
struct Depthwise {
  const void* x;              ///< [samples, height, width, channels]
  const float* scale;         ///< [channels]; null with shift: x is taken as it is
  const float* shift;         ///< [channels]
  const void* weight;         ///< [channels, kernel * kernel]
  void* y;                    ///< [samples, out_height, out_width, channels]
  float* centre;              ///< [channels], written: the middle of the first output, not
                              ///< rounded; null with partial
  const std::int32_t* valid;  ///< [1]
  float* partial;             ///< [depthwise_partials(...), 2, channels] or null: no sums
  DepthwiseShape shape;
  Activation activation;  ///< of the input
  DType dtype;
};

/// The batch norm and the gate that follow a depthwise convolution, as backward needs them: dz =
/// (grad * gate + grad_mean / pixels) * activation'(y * scale + shift), and the gradient of y is
/// scale * dz + (y - mean) * slope + offset, rounded.
struct FollowingNorm {
  const void* y;           ///< what the convolution gave; null: nothing follows
  const float* mean;       ///< [channels]
  const float* scale;      ///< [channels]
  const float* shift;      ///< [channels]
  const float* slope;      ///< [channels]; null with offset: zero
  const float* offset;     ///< [channels]
  const float* gate;       ///< [samples, channels]; null with grad_mean: 1 and 0
  const float* grad_mean;  ///< [samples, channels]
  Activation activation;
};

/// One pass: dx = conv's input gradient * activation'(x * scale + shift), that is before the
/// activation of the input; sums of dx and of dx * (x - mean) for the batch norm before; the
/// weight's gradient.
struct DepthwiseBackward {
  const void* x;       ///< [samples, height, width, channels]
  const float* mean;   ///< [channels]; null with scale and shift: x is taken as it is
  const float* scale;  ///< [channels]
  const float* shift;  ///< [channels]
  const void* weight;  ///< [channels, kernel * kernel]
  const void* grad;    ///< [samples, out_height, out_width, channels], after `following`
  FollowingNorm following;
  const std::int32_t* valid;  ///< [1]
  void* grad_x;               ///< as x
  float* partial;             ///< [depthwise_backward_partials(...), 2, channels]; null: no sums
  float* grad_weight;         ///< [channels, kernel * kernel]; null: not wanted
  float* weight_partial;      ///< scratch, [depthwise_backward_partials(...), kernel * kernel,
                              ///< channels]; null with grad_weight
  DepthwiseShape shape;
  Activation activation;  ///< of the input
  DType dtype;
  bool write_weight = false;  ///< grad_weight holds nothing yet: it is written, not added to
};

/// Rows of partial sums.
[[nodiscard]] std::int64_t depthwise_partials(const DepthwiseShape& shape, DType dtype);
[[nodiscard]] std::int64_t depthwise_backward_partials(const DepthwiseShape& shape, DType dtype);

namespace cuda {
/// Throws Error{internal} where depthwise_fits says no.
void depthwise(const Depthwise& args, cudaStream_t stream);
void depthwise_backward(const DepthwiseBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
