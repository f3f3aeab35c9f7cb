#pragma once

#include <cstdint>

#include "engine/base/philox.h"

struct CUstream_st;

namespace dstrain {

/// Arguments of augment() (augment.h) for kernel and CPU loop.
struct ImageAugment {
  const std::uint8_t* pixels;   ///< [batch, height, width, channels]
  const std::int64_t* samples;  ///< [batch / frames], -1: filler
  std::int64_t batch;           ///< of images
  int frames;                   ///< images of a sample, with the same choices
  int height, width, channels;
  int size;                     ///< of the output: [batch, channels, size, size]
  int crop_height, crop_width;  ///< window that is resized to the output
  int padding;                  ///< zeros around the image that a random crop may take in
  bool random_crop, horizontal_flip;
  std::uint64_t key;  ///< random_key(seed, RandomStream::augment)
  std::int64_t epoch;
  float scale[4], bias[4];  ///< out = pixel * scale + bias, per channel
};

enum class ImageType { fp32, bf16, fp16 };

namespace cuda {
void augment(const ImageAugment& args, ImageType type, void* out, CUstream_st* stream);
}

namespace augment_math {

// No contraction to fused operations, so that host and GPU round alike.
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float multiply(float a, float b) { return __fmul_rn(a, b); }
#else
DSTRAIN_HOST_DEVICE float add(float a, float b) { return a + b; }
DSTRAIN_HOST_DEVICE float multiply(float a, float b) { return a * b; }
#endif

/// Where the window of one sample starts in the stored image (negative: in the padding), and
/// whether it is mirrored.
struct Window {
  int top, left;
  bool flip;
};

DSTRAIN_HOST_DEVICE Window choose_window(const ImageAugment& a, std::int64_t sample) {
  const Philox random =
      Philox::at(a.key, static_cast<std::uint64_t>(a.epoch), static_cast<std::uint64_t>(sample));
  Window window{(a.height - a.crop_height) / 2, (a.width - a.crop_width) / 2, false};
  if (a.random_crop) {
    const int rows = a.height + 2 * a.padding - a.crop_height + 1;
    const int columns = a.width + 2 * a.padding - a.crop_width + 1;
    window.top = static_cast<int>(random.below(0, static_cast<std::uint32_t>(rows))) - a.padding;
    window.left =
        static_cast<int>(random.below(1, static_cast<std::uint32_t>(columns))) - a.padding;
  }
  if (a.horizontal_flip) window.flip = random.word[2] >> 31 != 0;
  return window;
}

/// The two positions of a crop of `length` between which output `index` of `size` lies, and the
/// share of the second.
struct Tap {
  int low, high;
  float share;
};

DSTRAIN_HOST_DEVICE Tap make_tap(int index, int length, int size) {
  const float ratio = static_cast<float>(length) / static_cast<float>(size);
  float at = add(multiply(add(static_cast<float>(index), 0.5f), ratio), -0.5f);
  if (at < 0) at = 0;
  const int low = static_cast<int>(at);
  const int last = length - 1;
  return {low < last ? low : last, low + 1 < last ? low + 1 : last, at - static_cast<float>(low)};
}

/// Pixel of the stored image, 0 in the padding.
DSTRAIN_HOST_DEVICE float fetch(const ImageAugment& a, const std::uint8_t* image, int y, int x,
                                int channel) {
  if (y < 0 || y >= a.height || x < 0 || x >= a.width) return 0.0f;
  return static_cast<float>(image[(y * a.width + x) * a.channels + channel]);
}

/// Linear between two values; exactly `low` where share is 0.
DSTRAIN_HOST_DEVICE float blend(float low, float high, float share) {
  return add(low, multiply(add(high, -low), share));
}

/// One normalised value of the output at the taps of its row and column.
DSTRAIN_HOST_DEVICE float value_at(const ImageAugment& a, const std::uint8_t* image,
                                   const Window& window, const Tap& row, const Tap& column,
                                   int channel) {
  const int top = window.top + row.low, bottom = window.top + row.high;
  const int left = window.left + column.low, right = window.left + column.high;
  // What blend gives then, by one read instead of four: in all of an image that is not resized.
  if (row.share == 0 && column.share == 0)
    return add(multiply(fetch(a, image, top, left, channel), a.scale[channel]), a.bias[channel]);
  const float upper = blend(fetch(a, image, top, left, channel),
                            fetch(a, image, top, right, channel), column.share);
  const float lower = blend(fetch(a, image, bottom, left, channel),
                            fetch(a, image, bottom, right, channel), column.share);
  return add(multiply(blend(upper, lower, row.share), a.scale[channel]), a.bias[channel]);
}

}  // namespace augment_math
}  // namespace dstrain
