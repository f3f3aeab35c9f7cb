#pragma once

#include <cstdint>

namespace dstrain {

/// Permutation of [0, size) that is a pure function of (seed, epoch): any position in O(1), nothing
/// stored. Feistel network over Philox with cycle walking (Luby & Rackoff 1988).
class SampleOrder {
 public:
  SampleOrder(std::int64_t size, std::int64_t seed, std::int64_t epoch);
  [[nodiscard]] std::int64_t at(std::int64_t position) const;

 private:
  std::int64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

}  // namespace dstrain
