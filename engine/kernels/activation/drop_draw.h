#pragma once

#include <cstdint>

#include "engine/base/philox.h"

/// Which elements a dropout drops: element i where the lower 15 bits of half i % 8, of 16 bits, of
/// the words of counter i / 8 are below a number of 2^15. As random numbers take longer than the
/// elements' traffic, a counter has eight elements, its words come from seven rounds of Philox,
/// which pass BigCrush (Salmon et al. 2011, table 2), and halves have 15 bits, which a GPU compares
/// as two fp16 numbers without signs.
namespace dstrain::kernels {

struct DropDraw {
  static constexpr int kElements = 8;  ///< of a counter
  static constexpr std::int32_t kRange = 32768;

  std::uint32_t dropped;  ///< of kRange: nearest to the share, but neither none nor all
  float factor;           ///< of what stays, so that the mean stays

  DSTRAIN_HOST_DEVICE static DropDraw of(float share) {
    auto dropped = static_cast<std::int32_t>(share * static_cast<float>(kRange) + 0.5f);
    dropped = dropped < 1 ? 1 : dropped > kRange - 1 ? kRange - 1 : dropped;
    return {static_cast<std::uint32_t>(dropped),
            static_cast<float>(kRange) / static_cast<float>(kRange - dropped)};
  }
  /// By the place's key, dropout_key().
  DSTRAIN_HOST_DEVICE static Philox words_of(std::uint64_t key, std::uint64_t counter) {
    constexpr int kRounds = 7;
    return Philox::at<kRounds>(key, 0, counter);
  }
  /// What element `index` of the counter's is multiplied by.
  [[nodiscard]] DSTRAIN_HOST_DEVICE float factor_of(const Philox& words, int index) const {
    const std::uint32_t half = words.word[index / 2] >> (index % 2 * 16);
    return (half & (kRange - 1)) >= dropped ? factor : 0.0f;
  }
};

}  // namespace dstrain::kernels
