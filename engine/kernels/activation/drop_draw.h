#pragma once

#include <cstdint>

#include "engine/base/philox.h"

/// Which elements a dropout drops: element i where half i % 8, of 16 bits, of Philox at counter
/// i / 8 and the place's key is below a number of 2^16. Eight elements to a counter, as Philox
/// takes longer than their traffic.
namespace dstrain::kernels {

struct DropDraw {
  static constexpr int kElements = 8;  ///< of a counter

  std::uint32_t dropped;  ///< of 2^16: nearest to the share, but neither none nor all
  float factor;           ///< of what stays, so that the mean stays

  DSTRAIN_HOST_DEVICE static DropDraw of(float share) {
    auto dropped = static_cast<std::int32_t>(share * 65536.0f + 0.5f);
    dropped = dropped < 1 ? 1 : dropped > 65535 ? 65535 : dropped;
    return {static_cast<std::uint32_t>(dropped), 65536.0f / static_cast<float>(65536 - dropped)};
  }
  /// What element `index` of the counter's is multiplied by.
  [[nodiscard]] DSTRAIN_HOST_DEVICE float factor_of(const Philox& words, int index) const {
    const std::uint32_t word = words.word[index / 2];
    return (index % 2 == 0 ? word & 0xFFFFu : word >> 16) >= dropped ? factor : 0.0f;
  }
};

}  // namespace dstrain::kernels
