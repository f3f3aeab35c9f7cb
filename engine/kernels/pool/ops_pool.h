#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Pooling of images [B, H, W, C] with its gradient; rules in engine/kernels/ops.h.
namespace dstrain::ops {

struct PoolShape {
  std::int64_t kernel = 2, stride = 2;
  std::int64_t padding = 0;  ///< on each side, at most half of the kernel; never the largest
  [[nodiscard]] std::int64_t output_side(std::int64_t side) const {
    return (side + 2 * padding - kernel) / stride + 1;
  }
};
/// The largest of each window, of equal ones the first. Saves where it was, a byte for each result.
[[nodiscard]] at::Tensor max_pool(const at::Tensor& x_BHWC, const PoolShape& shape);

/// Mean over height and width: [B, H, W, C] -> [B, C]. Saves nothing.
[[nodiscard]] at::Tensor average_pool(const at::Tensor& x_BHWC);

/// Means of a grid of `side` x `side` windows, which overlap where they do not divide the image, as
/// PyTorch's adaptive_avg_pool2d has them: [B, H, W, C] -> [B, side, side, C]. Saves nothing.
[[nodiscard]] at::Tensor average_grid(const at::Tensor& x_BHWC, std::int64_t side);

}  // namespace dstrain::ops
