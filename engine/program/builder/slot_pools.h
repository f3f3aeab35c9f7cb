#pragma once

#include <cstdint>
#include <vector>

namespace dstrain::builder {

/// Slots of one size.
struct SlotPool {
  std::int64_t elements = 0;  ///< of a slot
  int slots = 0;
  bool operator==(const SlotPool&) const = default;
};

struct SlotPools {
  std::vector<SlotPool> pools;  ///< largest slots first
  std::vector<int> pool_of;     ///< by group; -1: it takes no slot
};

/// Pools with the fewest elements in all with which the groups of each window have slots at the
/// same time. `elements`: by group; 0: it takes no slot. `windows`: groups, each at most once.
/// Groups of similar sizes share a pool; few large ones, such as tables of tokens, do not make the
/// slots of all others as large.
[[nodiscard]] SlotPools slot_pools(const std::vector<std::int64_t>& elements,
                                   const std::vector<std::vector<int>>& windows);

}  // namespace dstrain::builder
