#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dstrain {

/// Random choices are a pure function of (seed, epoch, sample), so they do not depend on rank,
/// batch or order.
struct AugmentOptions {
  std::int64_t seed = 0;
  std::int64_t epoch = 0;
  bool random_crop =
      false;  ///< window of the stored image (padded by crop_padding with zeros) at a random place
  int crop_padding = 0;
  bool horizontal_flip = false;                 ///< with probability 1/2
  int image_size = 0;                           ///< output height and width
  double scale = 1.0 / 255;                     ///< of a stored value, before mean and stddev
  float mean[4] = {0.485f, 0.456f, 0.406f, 0};  ///< per channel
  float stddev[4] = {0.229f, 0.224f, 0.225f, 1};
};

/// pixels [B, H, W, C] uint8, samples [B] int64 (-1: filler, gives zeros; of clips of T images
/// [B / T], with the same choices for all of a clip) -> out [B, C, S, S] in
/// out's dtype, on their device (host: in parallel over samples; GPU: on the current stream), in
/// one pass, with the same bits on both: crop or centre crop, flip, bilinear resize to S
/// (half-pixel centres, as align_corners=False without antialiasing), scale, normalise.
/// Where the stored image is at least S in both dims the crop is S x S; where it is not, the crop
/// has the stored size (with padding: shifted by up to crop_padding) and is resized.
void augment(const at::Tensor& pixels, const at::Tensor& samples, const AugmentOptions& options,
             at::Tensor& out);

}  // namespace dstrain
