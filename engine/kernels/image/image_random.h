#pragma once

#include <cstdint>

#include "engine/base/philox.h"

namespace dstrain {

/// What a random choice about an image is for; choices of different uses never meet.
enum class ImageDraw : std::uint64_t { crop_and_flip = 0, window, operation, erase, noise, mix };

/// The `index`-th words of a use, a pure function of (seed, epoch, sample), so that they do not
/// depend on rank, batch or order. `key` is random_key(seed, RandomStream::augment).
DSTRAIN_HOST_DEVICE Philox image_random(std::uint64_t key, ImageDraw use, std::int64_t epoch,
                                        std::int64_t sample, std::uint64_t index) {
  return Philox::at(
      key, static_cast<std::uint64_t>(epoch) | index << 32 | static_cast<std::uint64_t>(use) << 60,
      static_cast<std::uint64_t>(sample));
}

}  // namespace dstrain
