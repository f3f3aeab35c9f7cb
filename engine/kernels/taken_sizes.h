#pragma once

#include <cstdint>

#include "engine/base/taken_sizes.h"

/// Sizes of models that the kernels of a GPU take. Kernels check them when they start, layers when
/// they count what they cost (LayerCosts::require), so that a model of other sizes is refused
/// before a rank starts.
namespace dstrain::kernels {

inline constexpr std::int64_t kMaxNormDim = 8192;
inline constexpr TakenSizes kNormDims{.unit = 8, .max = kMaxNormDim};
inline constexpr TakenSizes kEmbeddingDims{.unit = 8};  ///< of tokens and sequences of patches
inline constexpr TakenSizes kExpertDims{.unit = 8};     ///< of rows that are sorted by expert

inline constexpr std::int64_t kMaxExperts = 512;
inline constexpr TakenSizes kExpertCounts{.max = kMaxExperts};
inline constexpr TakenSizes kChosenCounts{.max = 32};  ///< experts of a row

/// Elements of a head; `turned`: both halves by rotary positions.
constexpr TakenSizes head_dims(bool turned) { return {.unit = turned ? 16 : 8}; }
/// The same where keys and values are kept for the next token.
constexpr TakenSizes cached_head_dims(bool turned) {
  return {.unit = head_dims(turned).unit, .max = 256};
}

/// Images whose pixels' mean is taken, or that have gates.
inline constexpr TakenSizes kPooledSamples{.max = 65535};

}  // namespace dstrain::kernels
