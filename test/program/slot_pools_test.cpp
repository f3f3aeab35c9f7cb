#include "engine/program/builder/slot_pools.h"

#include <algorithm>
#include <vector>

#include "test/support/catch.h"

namespace dstrain::builder {
namespace {

using Windows = std::vector<std::vector<int>>;

/// Groups of `count` blocks, one each; as a step reads them with a prefetch of one.
Windows line(int count) {
  Windows windows;
  for (int b = 0; b < count; ++b) {
    std::vector<int>& window = windows.emplace_back();
    for (int g = std::max(b - 1, 0); g < std::min(b + 2, count); ++g) window.push_back(g);
  }
  return windows;
}

TEST_CASE("groups of one size share one pool", "[program]") {
  const SlotPools made = slot_pools({7, 7, 7, 7, 7}, line(5));
  CHECK(made.pools == std::vector<SlotPool>{{.elements = 7, .slots = 3}});
  CHECK(made.pool_of == std::vector{0, 0, 0, 0, 0});
}

TEST_CASE("tables at both ends take turns in one slot of their own", "[program]") {
  const SlotPools made = slot_pools({1000, 100, 100, 100, 100, 90, 1000}, line(7));
  CHECK(made.pools ==
        std::vector<SlotPool>{{.elements = 1000, .slots = 1}, {.elements = 100, .slots = 3}});
  CHECK(made.pool_of == std::vector{0, 1, 1, 1, 1, 1, 0});
}

TEST_CASE("a small group takes a slot of others where one is free", "[program]") {
  const SlotPools made = slot_pools({30, 100, 100, 100, 100, 20}, line(6));
  CHECK(made.pools == std::vector<SlotPool>{{.elements = 100, .slots = 3}});
}

TEST_CASE("a large and a small group of each block have pools of their own", "[program]") {
  // Blocks of a frozen matrix (even groups) and its adapters (odd ones).
  const SlotPools made =
      slot_pools({50, 2, 50, 2, 50, 2, 0}, {{0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}, {2, 3, 4, 5}});
  CHECK(made.pools ==
        std::vector<SlotPool>{{.elements = 50, .slots = 3}, {.elements = 2, .slots = 3}});
  CHECK(made.pool_of == std::vector{0, 1, 0, 1, 0, 1, -1});
}

TEST_CASE("no group needs no pool", "[program]") {
  const SlotPools made = slot_pools({0, 0}, {{}, {}});
  CHECK(made.pools.empty());
  CHECK(made.pool_of == std::vector{-1, -1});
}

}  // namespace
}  // namespace dstrain::builder
