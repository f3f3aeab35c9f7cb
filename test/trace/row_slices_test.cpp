#include "engine/trace/row_slices.h"

#include <random>
#include <vector>

#include "test/support/catch.h"

using dstrain::trace::RowSlices;

namespace {

struct Slice {
  std::int64_t start, end;
  bool work;
};

/// Whether a viewer leaves one of them out on one row.
bool exclude(const Slice& a, const Slice& b) {
  const bool apart = a.end <= b.start || b.end <= a.start;
  const bool a_in_b = b.start <= a.start && a.end <= b.end;
  const bool b_in_a = a.start <= b.start && b.end <= a.end;
  return !apart && ((a.work && b.work) || (!a_in_b && !b_in_a));
}

}  // namespace

TEST_CASE("a row takes a slice exactly if it crosses none that it holds", "[trace]") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    RowSlices row;
    std::vector<Slice> held;
    for (int i = 0; i < 60; ++i) {
      const auto start = static_cast<std::int64_t>(random() % 200);
      const auto length = static_cast<std::int64_t>(1 + random() % (random() % 4 == 0 ? 100 : 9));
      const Slice slice = {start, start + length, random() % 2 == 0};
      bool fits = true;
      for (const Slice& other : held) fits = fits && !exclude(slice, other);
      REQUIRE(row.take(slice.start, slice.end, slice.work) == fits);
      if (fits) held.push_back(slice);
    }
    REQUIRE(held.size() > 5);
    REQUIRE(row.take(50, 50, true));
  }
}
