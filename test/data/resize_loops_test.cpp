#include "engine/data/images/resize_loops.h"

#include <algorithm>
#include <random>
#include <vector>

#include "test/support/catch.h"

namespace dstrain::resize {
namespace {

/// Outputs that read windows of up to `max` pixels of a row of `width`; some weights are negative,
/// and no sum exceeds twice a pixel.
Taps random_taps(int width, int outputs, int max, std::mt19937& random) {
  const auto below = [&](int count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  Taps taps;
  for (int i = 0; i < outputs; ++i) {
    const int first = below(width), end = std::min(width, first + 1 + below(max));
    const int bound = (1 << (kWeightBits - 1)) / (end - first);
    std::int32_t left = 1 << kWeightBits;
    taps.first.push_back(first);
    for (int t = first; t + 1 < end; ++t) {
      taps.weights.push_back(below(2 * bound) - bound);
      left -= taps.weights.back();
    }
    taps.weights.push_back(left);
    taps.begin.push_back(static_cast<int>(taps.weights.size()));
  }
  return taps;
}

TEST_CASE("both vector units give the same bits", "[data]") {
  if (__builtin_cpu_supports("avx2") == 0) return;
  std::mt19937 random(20261124);
  for (int round = 0; round < 400; ++round) {
    const int width = 1 + static_cast<int>(random() % 40), outputs = 1 + round % 37;
    const std::size_t rows = 1 + random() % 5;
    const Taps taps = random_taps(width, outputs, 1 + round % 11, random);
    const std::size_t bytes = rows * static_cast<std::size_t>(width) * 3;
    std::vector<std::uint8_t> from(bytes + kSlack);
    for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random());
    std::vector<std::uint8_t> plain(rows * taps.size() * 3), wide(plain.size()), single;
    Loops<Plain>::rgb_columns(from.data(), width, rows, taps, plain.data());
    Loops<Avx2>::rgb_columns(from.data(), width, rows, taps, wide.data());
    for (std::size_t y = 0; y < rows; ++y) {
      std::vector<std::uint8_t> row(taps.size() * 3);
      Loops<Plain>::columns(&from[y * static_cast<std::size_t>(width) * 3], 3, taps, row.data());
      single.insert(single.end(), row.begin(), row.end());
    }
    CAPTURE(round, width, rows);
    REQUIRE(plain == single);
    REQUIRE(wide == single);
    const std::ptrdiff_t values = std::ptrdiff_t{width} * 3;
    std::vector<std::uint8_t> line(static_cast<std::size_t>(values)), other(line.size());
    const int taken = std::min(static_cast<int>(rows), taps.count(0));
    Loops<Plain>::rows(from.data(), values, taps.of(0), taken, values, line.data());
    Loops<Avx2>::rows(from.data(), values, taps.of(0), taken, values, other.data());
    REQUIRE(line == other);
  }
}

}  // namespace
}  // namespace dstrain::resize
