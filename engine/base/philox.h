#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DSTRAIN_HOST_DEVICE __host__ __device__ __forceinline__
#else
// Always inline: a copy compiled for other vector units must not take the place of all others.
#define DSTRAIN_HOST_DEVICE [[gnu::always_inline]] inline
#endif

namespace dstrain {

/// Four random 32-bit words that are a pure function of a 64-bit key and a 128-bit counter; the
/// same on host and GPU. Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1,
/// 2, 3", sec. 3.3.
struct Philox {
  static constexpr int kRounds = 10;
  static constexpr std::uint32_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;
  static constexpr std::uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;

  std::uint32_t word[4];

  template <int kTimes = kRounds>
  DSTRAIN_HOST_DEVICE static Philox at(std::uint64_t key, std::uint64_t high, std::uint64_t low) {
    auto k0 = static_cast<std::uint32_t>(key);
    auto k1 = static_cast<std::uint32_t>(key >> 32);
    auto c0 = static_cast<std::uint32_t>(low);
    auto c1 = static_cast<std::uint32_t>(low >> 32);
    auto c2 = static_cast<std::uint32_t>(high);
    auto c3 = static_cast<std::uint32_t>(high >> 32);
    for (int round = 0; round < kTimes; ++round) {
      const std::uint64_t p0 = std::uint64_t{kFactor0} * c0;
      const std::uint64_t p1 = std::uint64_t{kFactor1} * c2;
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<std::uint32_t>(p1);
      c3 = static_cast<std::uint32_t>(p0);
      c0 = n0;
      c2 = n2;
      k0 += kStep0;
      k1 += kStep1;
    }
    return {{c0, c1, c2, c3}};
  }

  /// Uniform in [0, 1) with 24 bits.
  [[nodiscard]] DSTRAIN_HOST_DEVICE float uniform(int index) const {
    return static_cast<float>(word[index] >> 8) * (1.0f / 16777216.0f);
  }
  /// Uniform integer in [0, bound).
  [[nodiscard]] DSTRAIN_HOST_DEVICE std::uint32_t below(int index, std::uint32_t bound) const {
    return static_cast<std::uint32_t>((std::uint64_t{word[index]} * bound) >> 32);
  }
};

/// Key of one random stream: the run's seed and what the numbers are for, so that streams never
/// meet.
enum class RandomStream : std::uint32_t {
  init = 1,
  order = 2,
  augment = 3,
  dropout = 4,
  synthetic = 5,
  rounding = 6,
  wire = 7
};
DSTRAIN_HOST_DEVICE std::uint64_t random_key(std::uint64_t seed, RandomStream stream) {
  return seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(stream) * 0xD1B54A32D192ED03ull;
}
/// Key of the dropout mask of one place of a model, from the seed of its micro-batch.
DSTRAIN_HOST_DEVICE std::uint64_t dropout_key(std::uint64_t seed, std::uint64_t place) {
  const Philox random = Philox::at(seed, place, 0);
  return random_key(std::uint64_t{random.word[1]} << 32 | random.word[0], RandomStream::dropout);
}

}  // namespace dstrain
