#include "engine/data/order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

std::vector<std::int64_t> order_of(std::int64_t size, std::int64_t seed, std::int64_t epoch) {
  const SampleOrder order(size, seed, epoch);
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < size; ++i) all.push_back(order.at(i));
  return all;
}

TEST_CASE("an order holds every sample exactly once", "[data][property]") {
  const std::int64_t seed = GENERATE(0, 42, -1);
  const std::int64_t epoch = GENERATE(0, 1, 1000);
  bool every = true;
  for (std::int64_t size = 1; size <= 2000; size += size < 300 ? 1 : 37) {
    auto all = order_of(size, seed, epoch);
    std::ranges::sort(all);
    std::vector<std::int64_t> expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    every = every && all == expected;
  }
  REQUIRE(every);
}

TEST_CASE("seed and epoch change the order, nothing else does", "[data]") {
  const auto order = order_of(1437, 7, 3);
  REQUIRE(order == order_of(1437, 7, 3));
  REQUIRE(order != order_of(1437, 8, 3));
  REQUIRE(order != order_of(1437, 7, 4));
}

TEST_CASE("an order reaches positions of a huge data set at once", "[data]") {
  const std::int64_t size = std::int64_t{1} << 40;
  const SampleOrder order(size, 1, 0);
  for (const std::int64_t position : {std::int64_t{0}, size / 3, size - 1}) {
    REQUIRE(order.at(position) >= 0);
    REQUIRE(order.at(position) < size);
  }
}

TEST_CASE("every sample comes first equally often over the epochs", "[data][property]") {
  constexpr int kSize = 10, kEpochs = 20000;
  std::vector<int> counts(kSize);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    ++counts[static_cast<std::size_t>(SampleOrder(kSize, 5, epoch).at(0))];
  }
  // Five standard deviations of a binomial count: sqrt(20000 * 0.1 * 0.9) = 42.4.
  for (const int count : counts) REQUIRE(std::abs(count - kEpochs / kSize) < 212);
}

TEST_CASE("a position outside the data set is our own fault", "[data]") {
  const SampleOrder order(5, 0, 0);
  REQUIRE_THROWS_AS(order.at(5), Error);
  REQUIRE_THROWS_AS(order.at(-1), Error);
}

}  // namespace
}  // namespace dstrain
