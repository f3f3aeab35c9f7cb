#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/kernels/parameter.h"

/// Convolutions of images and their gradients, without autograd; what the operators of
/// ops_conv.h are made of.
///
/// Legend: B samples, H, W height and width, C channels. An image tensor is dense [B, H, W, C],
/// which is PyTorch's channels-last layout; M = B * H * W rows of C.
namespace dstrain::ops {

/// A convolution with a square kernel, the same along height and width. Weight [out, in / groups,
/// kernel, kernel], as in PyTorch.
struct ConvShape {
  std::int64_t in = 0, out = 0;  ///< channels
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t before = 0, after = 0;  ///< zeros around the image: above and left, below and right
  std::int64_t groups = 1;  ///< input channel group i leads to output channel group i only

  /// 1x1 without padding, stride and groups: a product of the rows.
  [[nodiscard]] bool pointwise() const {
    return kernel == 1 && stride == 1 && before == 0 && after == 0 && groups == 1;
  }
  [[nodiscard]] bool depthwise() const { return groups == in && groups == out && groups > 1; }
  /// Height or width of the output.
  [[nodiscard]] std::int64_t output_side(std::int64_t side) const {
    return (side + before + after - kernel) / stride + 1;
  }
  [[nodiscard]] std::int64_t weight_elements() const {
    return out * (in / groups) * kernel * kernel;
  }
  bool operator==(const ConvShape&) const = default;
};

/// Throws unless x is [B, H, W, in] with room for the kernel, the weight of this shape and the
/// bias, if any, [out].
void check_conv(const at::Tensor& x, const ConvShape& shape, const Parameter& weight,
                const Parameter* bias);

/// image [B, H, W, in], weight of the compute dtype -> [B, H', W', out] dense, without bias. On a
/// GPU by products (1x1, and columns.h) or cuDNN's deterministic kernels, never in TF32; on a CPU
/// in fp32, rounded once.
[[nodiscard]] at::Tensor convolve(const at::Tensor& image, const at::Tensor& weight,
                                  const ConvShape& shape);

/// dy [B, H', W', out] -> gradient of x, which is [B, H, W, in]: `sizes`. `other`: another part of
/// it, which is added and may be overwritten; undefined: none.
[[nodiscard]] at::Tensor convolve_input_gradient(const at::Tensor& dy, const at::Tensor& weight,
                                                 const ConvShape& shape, at::IntArrayRef sizes,
                                                 const at::Tensor& other = {});

/// Adds the gradient of the weight to its fp32 gradient, or writes it there where that is empty.
void add_conv_weight_gradient(const at::Tensor& image, const at::Tensor& dy, const ConvShape& shape,
                              Parameter& weight);

}  // namespace dstrain::ops
