#pragma once

#include <bit>
#include <cstdint>

#include "engine/base/philox.h"

/// Rounding to bf16 that is right on average: up with the probability of the part that is cut off.
/// A state kept in bf16 moves so by steps far below its last bit. Gupta et al. 2015,
/// arXiv:1502.02551, sec. 3. The same on host and GPU.
namespace dstrain::kernels {

/// Which state of an element is rounded; each has random bits of its own.
enum class RoundedState : std::uint64_t { parameter, first_moment, second_moment };

DSTRAIN_HOST_DEVICE RoundedState rounded_moment(int index) {
  return static_cast<RoundedState>(index + 1);
}

/// Random bits of `kTogether` elements in a row, from one Philox call.
struct RoundingBits {
  static constexpr int kTogether = 8;

  Philox philox;

  /// `group` is the elements' position in the whole tensor, divided by kTogether.
  DSTRAIN_HOST_DEVICE static RoundingBits at(std::uint64_t key, std::uint64_t step,
                                             std::int64_t group, RoundedState state) {
    return {Philox::at(key, step, counter(group, state))};
  }
  DSTRAIN_HOST_DEVICE static std::uint64_t counter(std::int64_t group, RoundedState state) {
    return static_cast<std::uint64_t>(group) * 4 + static_cast<std::uint64_t>(state);
  }
  /// 16 bits for the k-th of them.
  [[nodiscard]] DSTRAIN_HOST_DEVICE std::uint32_t of(int k) const {
    return (philox.word[k / 2] >> (k % 2 * 16)) & 0xffffu;
  }
};

DSTRAIN_HOST_DEVICE float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Bits of a bf16 next to x: the one away from zero when `random`, of 16 bits, and the part cut off
/// add up to one or more. An infinity has nothing to cut off; a nan must not overflow.
DSTRAIN_HOST_DEVICE std::uint16_t round_stochastically(float x, std::uint32_t random) {
  auto bits = std::bit_cast<std::uint32_t>(x);
  if (x == x) bits += random;
  return static_cast<std::uint16_t>(bits >> 16);
}

}  // namespace dstrain::kernels
