#include "engine/data/order.h"

#include <bit>

#include "engine/base/error.h"
#include "engine/base/philox.h"

namespace dstrain {
namespace {

/// Four rounds make a pseudo-random permutation of a large domain; small domains need more.
constexpr std::uint64_t kRounds = 8;

}  // namespace

SampleOrder::SampleOrder(std::int64_t size, std::int64_t seed, std::int64_t epoch) : size_(size) {
  DSTRAIN_CHECK(size > 0, "an order needs samples");
  const Philox key = Philox::at(random_key(static_cast<std::uint64_t>(seed), RandomStream::order),
                                0, static_cast<std::uint64_t>(epoch));
  key_ = std::uint64_t{key.word[0]} << 32 | key.word[1];
  half_bits_ = (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1))) + 1) / 2;
}

std::int64_t SampleOrder::at(std::int64_t position) const {
  DSTRAIN_CHECK(position >= 0 && position < size_, "no such position");
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {  // the network permutes the next power of four; walk its cycle back into [0, size)
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (Philox::at(key_, round, right).word[0] & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace dstrain
