#pragma once

#include <cstdint>

#include "engine/base/philox.h"

namespace dstrain::kernels {

/// What the 64-bit word at `place` adds to a hash. A bijection of the word, so a word that differs
/// changes the sum, and two that have changed places do, too. Few operations, as all weights of a
/// model go through them; the constants are those of splitmix64 (Steele et al. 2014,
/// doi:10.1145/2660193.2660195).
DSTRAIN_HOST_DEVICE std::uint64_t mixed_word(std::uint64_t word, std::uint64_t place) {
  word += (place + 1) * 0x9E3779B97F4A7C15ULL;
  word = (word ^ (word >> 32)) * 0xBF58476D1CE4E5B9ULL;
  return word ^ (word >> 29);
}

}  // namespace dstrain::kernels
