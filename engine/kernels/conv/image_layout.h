#pragma once

#include <ATen/core/Tensor.h>

/// Views of dense images [B, H, W, C].
namespace dstrain::ops {

/// As PyTorch sees it: [B, C, H, W] with the strides of channels last; no copy.
[[nodiscard]] inline at::Tensor channels_second(const at::Tensor& image) {
  return image.permute({0, 3, 1, 2});
}

/// The opposite, dense.
[[nodiscard]] inline at::Tensor channels_last(const at::Tensor& image) {
  return image.permute({0, 2, 3, 1}).contiguous();
}

/// [B * H * W, C]; no copy.
[[nodiscard]] inline at::Tensor pixel_rows(const at::Tensor& image) {
  return image.view({-1, image.size(3)});
}

}  // namespace dstrain::ops
