#pragma once

#include <bit>
#include <cstdint>

#include "engine/base/philox.h"
#include "engine/kernels/wire/kernels.h"

/// The arithmetic of coded blocks, for the GPU and the CPU: every operation is rounded by itself,
/// so that both give the same bits. On the CPU the file that includes this is compiled without
/// contraction.
namespace dstrain::kernels {

/// Below it one over the scale, times kRandomSteps, would overflow.
inline constexpr float kMinScale = 0x1p-100f;
inline constexpr float kRandomSteps = 65536;
/// 1.5 * 2^23: what is added to it is rounded to a whole number, which stands in the low bits.
inline constexpr float kWhole = 12582912.0f;
inline constexpr std::uint32_t kInfinity = 0x7f800000u;
inline constexpr std::uint16_t kNanScale = 0x7fc0u;

template <CodeFormat kFormat>
inline constexpr float kLargestCode = kFormat == CodeFormat::int8  ? 127.0f
                                      : kFormat == CodeFormat::fp8 ? 448.0f
                                                                   : 7.0f;

/// Magnitudes as bits compare like the numbers, with nan above infinity.
DSTRAIN_HOST_DEVICE std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}

struct BlockScale {
  std::uint16_t bits;  ///< bf16
  bool finite;         ///< all values of the block are
  float inverse;       ///< 0 where they are not
};

/// From the largest magnitude_bits of the block.
template <CodeFormat kFormat>
DSTRAIN_HOST_DEVICE BlockScale scale_of(std::uint32_t largest) {
  if (largest >= kInfinity) return {kNanScale, false, 0};
  float scale = std::bit_cast<float>(largest) / kLargestCode<kFormat>;  // IEEE also on the GPU
  if (scale < kMinScale) scale = kMinScale;
  const std::uint32_t up = (std::bit_cast<std::uint32_t>(scale) + 0xffffu) & 0xffff0000u;
  return {static_cast<std::uint16_t>(up >> 16), true, 1.0f / std::bit_cast<float>(up)};
}

DSTRAIN_HOST_DEVICE float scale_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// x * factor, rounded, with the nearest whole number of it in the low bits.
DSTRAIN_HOST_DEVICE std::uint32_t whole_bits(float x, float factor) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(__fadd_rn(__fmul_rn(x, factor), kWhole));
#else
  return std::bit_cast<std::uint32_t>(x * factor + kWhole);
#endif
}

/// Random bits of the eight elements 4 * lane + {0 to 3} and 64 + 4 * lane + {0 to 3} of a block:
/// as the lanes of a GPU read them.
struct CodeBits {
  static constexpr int kLanes = 16;
  Philox philox;

  /// `first`: position of the block in the whole.
  DSTRAIN_HOST_DEVICE static CodeBits at(std::uint64_t key, std::uint64_t counter,
                                         std::int64_t first, int lane) {
    return {Philox::at(key, counter,
                       static_cast<std::uint64_t>(first) / 8 + static_cast<std::uint64_t>(lane))};
  }
  /// 16 bits for the k-th of them.
  [[nodiscard]] DSTRAIN_HOST_DEVICE std::uint32_t of(int k) const {
    return (philox.word[k / 2] >> (k % 2 * 16)) & 0xffffu;
  }
};

/// Whole numbers as codes. No limits are needed: x * inverse exceeds the largest code by three
/// roundings at most.
DSTRAIN_HOST_DEVICE std::uint32_t nearest_int8(float x, float inverse) {
  return whole_bits(x, inverse) & 0xffu;
}
DSTRAIN_HOST_DEVICE std::uint32_t nearest_int4(float x, float inverse) {
  return whole_bits(x, inverse) & 0xfu;
}
/// x / scale in steps of 2^-16 and a random part of them, cut off: right on average. kWhole has
/// zeros in the four bits that are left.
DSTRAIN_HOST_DEVICE std::uint32_t random_int4(float x, float inverse, std::uint32_t random) {
  return ((whole_bits(x, inverse * kRandomSteps) + random) >> 16) & 0xfu;
}

DSTRAIN_HOST_DEVICE float int8_value(std::uint32_t code) {
  return static_cast<float>(static_cast<std::int8_t>(static_cast<std::uint8_t>(code)));
}
DSTRAIN_HOST_DEVICE float int4_value(std::uint32_t code) {
  return static_cast<float>(static_cast<std::int32_t>(code ^ 8u) - 8);
}

}  // namespace dstrain::kernels
