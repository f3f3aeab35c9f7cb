#pragma once

#include <ATen/core/Tensor.h>

#include "engine/kernels/conv/conv.h"
#include "engine/kernels/conv/direct_kernel.h"
#include "engine/kernels/parameter.h"

/// Convolutions as products with the windows of the image, on a GPU; no autograd. Legend in conv.h.
namespace dstrain::ops {

/// Numbers of a window, rounded up so that products read whole words.
[[nodiscard]] constexpr std::int64_t columns_width(const ConvShape& shape) {
  return (shape.in * shape.kernel * shape.kernel + 7) / 8 * 8;
}

/// Whether a GPU convolves like this: for images of few channels cuDNN's kernels waste most of what
/// they multiply.
[[nodiscard]] constexpr bool by_columns(const ConvShape& shape) {
  return shape.in < 8 && shape.kernel > 1 && shape.groups == 1;
}

/// Whether that is done without the windows in memory (direct_kernel.h).
[[nodiscard]] constexpr bool by_direct_kernel(const ConvShape& shape, std::int64_t element_bytes) {
  return element_bytes == 2 && shape.groups == 1 &&
         kernels::direct_fits(shape.in, shape.out, shape.kernel, shape.stride);
}

/// relu(conv(x) + bias), or without either, of 16-bit x with any strides; `bias` undefined: none.
[[nodiscard]] at::Tensor convolve_directly(const at::Tensor& x, const at::Tensor& weight,
                                           const ConvShape& shape, const at::Tensor& bias = {},
                                           bool relu = false);
/// As convolve(), of x with any strides.
[[nodiscard]] at::Tensor convolve_columns(const at::Tensor& x, const at::Tensor& weight,
                                          const ConvShape& shape);
/// As add_conv_weight_gradient(), of x with any strides.
void add_columns_weight_gradient(const at::Tensor& x, const at::Tensor& dy, const ConvShape& shape,
                                 Parameter& weight);

}  // namespace dstrain::ops
