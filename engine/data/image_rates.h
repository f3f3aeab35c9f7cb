#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/dataset.h"

namespace dstrain {

/// Images per second on so many threads. Each stage has the ones before it inside.
struct ImageRates {
  int threads = 0;
  double read = 0;     ///< the stored bytes of an image, without decoding them
  double decode = 0;   ///< of what training needs
  double prepare = 0;  ///< resized, with the random choices: what a batch takes
  double bytes = 0;    ///< stored ones of an image, mean
};

/// Reads samples of `images` in training's order for `seconds` per stage and number of threads.
/// What one stage read before is in the page cache, so that `read` is not the rate of a disk.
[[nodiscard]] std::vector<ImageRates> measure_image_rates(const ImageDataset& images,
                                                          std::span<const int> threads,
                                                          double seconds, std::int64_t seed);

}  // namespace dstrain
