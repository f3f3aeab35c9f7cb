#pragma once

#include <cmath>
#include <cstdint>

#include "engine/kernels/image/augment_math.h"
#include "engine/kernels/image/image_random.h"

namespace dstrain {

/// Where the values of a batch of images lie: (sample, channel of one of its images, pixel).
struct ImageLayout {
  std::int64_t batch;
  int images, channels, size;                 ///< images of a sample, `size` x `size`
  std::int64_t channel_stride, pixel_stride;  ///< within an image

  [[nodiscard]] DSTRAIN_HOST_DEVICE std::int64_t pixels() const {
    return std::int64_t{size} * size;
  }
  /// Planes of all images of a sample.
  [[nodiscard]] DSTRAIN_HOST_DEVICE int planes() const { return images * channels; }
  [[nodiscard]] DSTRAIN_HOST_DEVICE std::int64_t at(std::int64_t sample, int plane,
                                                    std::int64_t pixel) const {
    const std::int64_t image = sample * images + plane / channels;
    return image * channels * pixels() + plane % channels * channel_stride + pixel * pixel_stride;
  }
};

struct ImageErase {
  ImageLayout layout;
  const std::int32_t* windows;  ///< [batch, 4]
  const std::int64_t* samples;  ///< [batch], -1: filler
  bool noise;
  std::uint64_t key;  ///< random_key(seed, RandomStream::augment)
  std::int64_t epoch;
};

struct ImageMix {
  ImageLayout layout;
  const float* shares;          ///< [batch]
  const std::int32_t* windows;  ///< [batch, 4]
  const std::int32_t* valid;    ///< [1]
};

namespace cuda {
void erase(const ImageErase& args, ImageType type, void* images, CUstream_st* stream);
void mix(const ImageMix& args, ImageType type, void* images, CUstream_st* stream);
}  // namespace cuda

namespace mix_math {

DSTRAIN_HOST_DEVICE bool inside(const std::int32_t* window, std::int64_t pixel, int size) {
  const auto x = static_cast<std::int32_t>(pixel % size);
  const auto y = static_cast<std::int32_t>(pixel / size);
  return x >= window[0] && x < window[0] + window[2] && y >= window[1] && y < window[1] + window[3];
}

/// What a value of an erased rectangle becomes. Box and Muller 1958.
DSTRAIN_HOST_DEVICE float fill_value(const ImageErase& a, std::int64_t sample, int plane,
                                     std::int64_t pixel) {
  if (!a.noise) return 0;
  const auto index = static_cast<std::uint64_t>(plane * a.layout.pixels() + pixel);
  const Philox random = image_random(a.key, ImageDraw::noise, a.epoch, sample, index);
  const float radius = sqrtf(-2.0f * logf(random.uniform(0) + 0x1p-25f));
  return radius * cosf(6.28318530717958648f * random.uniform(1));
}

/// Value of a sample that is `own`, mixed with that of the other one.
DSTRAIN_HOST_DEVICE float mixed(const ImageMix& a, std::int64_t sample, std::int64_t pixel,
                                float own, float other) {
  const float share = a.shares[sample];
  const float from = inside(a.windows + sample * 4, pixel, a.layout.size) ? other : own;
  if (share == 1.0f) return from;
  return augment_math::add(augment_math::multiply(share, from),
                           augment_math::multiply(1.0f - share, other));
}

}  // namespace mix_math
}  // namespace dstrain
