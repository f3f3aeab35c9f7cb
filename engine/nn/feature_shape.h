#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/units.h"

namespace dstrain {

/// Shape of an image tensor, which is dense [B, H, W, C]: PyTorch's channels-last layout.
struct FeatureShape {
  std::int64_t samples = 0;
  std::int64_t height = 0, width = 0;
  std::int64_t channels = 0;

  [[nodiscard]] std::int64_t elements() const { return samples * height * width * channels; }
  [[nodiscard]] Bytes bytes(int element_bytes) const { return elements() * element_bytes; }
  [[nodiscard]] std::vector<std::int64_t> sizes() const {
    return {samples, height, width, channels};
  }
};

}  // namespace dstrain
