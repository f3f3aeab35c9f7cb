#include "engine/trace/row_slices.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "test/support/catch.h"

using dstrain::trace::RowSlices;
using dstrain::trace::SortedRows;
using dstrain::trace::StreamRows;

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

std::vector<Slice> random_slices(std::mt19937& random, int count) {
  std::vector<Slice> slices;
  for (int i = 0; i < count; ++i) {
    const auto start = static_cast<std::int64_t>(random() % 200);
    const auto length = static_cast<std::int64_t>(1 + random() % (random() % 4 == 0 ? 100 : 9));
    slices.push_back({start, start + length, random() % 2 == 0});
  }
  return slices;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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

TEST_CASE("no two slices on one row of a stream exclude each other, in any order", "[trace]") {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    StreamRows rows;
    std::map<std::size_t, std::vector<Slice>> drawn;
    for (const Slice& slice : random_slices(random, 800)) {
      std::vector<Slice>& row = drawn[rows.take(slice.start, slice.end, slice.work)];
      for (const Slice& other : row) REQUIRE_FALSE(exclude(slice, other));
      row.push_back(slice);
    }
    REQUIRE(drawn.size() > 20);
    REQUIRE(drawn.rbegin()->first == drawn.size() - 1);
  }
}

TEST_CASE("slices by start go to the first row that takes them", "[trace]") {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<Slice> slices = random_slices(random, 200);
    std::ranges::stable_sort(slices, [](const Slice& a, const Slice& b) {
      return a.start != b.start ? a.start < b.start : a.end > b.end;
    });
    SortedRows rows;
    std::vector<std::vector<Slice>> open;
    for (const Slice& slice : slices) {
      std::size_t expected = 0;
      for (; expected < open.size(); ++expected) {
        std::vector<Slice>& row = open[expected];
        while (!row.empty() && row.back().end <= slice.start) row.pop_back();
        if (row.empty()) break;
        if (slice.end <= row.back().end && !(slice.work && row.back().work)) break;
      }
      if (expected == open.size()) open.emplace_back();
      open[expected].push_back(slice);
      REQUIRE(rows.take(slice.start, slice.end, slice.work) == expected);
    }
    REQUIRE(rows.size() == open.size());
    REQUIRE(rows.take(90, 90, false) < rows.size());
  }
}

TEST_CASE("the time for slices that all cross, or are all inside each other, grows with their number",
          "[trace]") {
  constexpr std::int64_t kCount = 300'000;  // minutes where each slice looks at all others
  const bool work = GENERATE(false, true);
  CHECK(seconds_of([&] {
          StreamRows rows;
          for (std::int64_t i = 0; i < kCount; ++i)
            if (rows.take(i, i + kCount, work) != static_cast<std::size_t>(i)) FAIL(i);
        }) < 10);
  CHECK(seconds_of([&] {
          SortedRows rows;
          for (std::int64_t i = 0; i < kCount; ++i)
            if (rows.take(i, i + kCount, work) != static_cast<std::size_t>(i)) FAIL(i);
        }) < 10);
  CHECK(seconds_of([&] {  // the innermost first, as profilers write what ends first
          StreamRows rows;
          for (std::int64_t i = 1; i <= kCount; ++i)
            if (rows.take(-i, i, false) != 0) FAIL(i);
        }) < 10);
}
