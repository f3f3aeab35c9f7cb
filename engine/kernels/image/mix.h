#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dstrain {

/// Work on normalised images [B * T, C, S, S] of fp32, bf16 or fp16, T images a sample, dense with
/// channels first or last, in place; on their device, with the same choices on both. Rectangles
/// [B, 4] int32 are left, top, width and height; a width of 0 means none.

struct EraseOptions {
  bool noise = false;  ///< normal noise for each value; else zeros
  std::int64_t seed = 0, epoch = 0;
};
/// Fills the rectangle of each sample. samples [B] int64, -1: a filler, which stays. Zhong et al.
/// 2017, arXiv:1708.04896.
void erase(at::Tensor& images, const at::Tensor& windows, const at::Tensor& samples,
           const EraseOptions& options);

/// Sample r of the first v = `valid` ([] int32) becomes shares[r] of itself and the rest of sample
/// v - 1 - r, and inside its rectangle that one alone. shares [B] fp32. Zhang et al. 2017,
/// arXiv:1710.09412, eq. 1; Yun et al. 2019, arXiv:1905.04899, eq. 1.
void mix(at::Tensor& images, const at::Tensor& shares, const at::Tensor& windows,
         const at::Tensor& valid);

}  // namespace dstrain
