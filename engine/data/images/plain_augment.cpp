#include "engine/data/images/plain_augment.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace dstrain {
namespace {

/// A list may hold one value for all channels.
float of_channel(const std::vector<double>& values, std::size_t channel) {
  return static_cast<float>(values.at(std::min(channel, values.size() - 1)));
}

}  // namespace

AugmentOptions plain_augment(const NormalizeConfig& normalize, int channels, int image_size) {
  AugmentOptions options{.image_size = image_size, .scale = normalize.scale};
  for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
    options.mean[c] = of_channel(normalize.mean, c);
    options.stddev[c] = of_channel(normalize.deviation, c);
  }
  return options;
}

}  // namespace dstrain
