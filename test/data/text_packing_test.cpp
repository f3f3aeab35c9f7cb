#include <algorithm>
#include <numeric>

#include "engine/base/philox.h"
#include "engine/data/text/packing.h"
#include "engine/data/text/selection.h"
#include "test/support/catch.h"

namespace dstrain::text {
namespace {

std::vector<std::int32_t> random_lengths(std::size_t size, int sequence, std::uint64_t seed) {
  std::vector<std::int32_t> lengths(size);
  for (std::size_t i = 0; i < size; ++i) {
    lengths[i] = 1 + static_cast<std::int32_t>(
                         Philox::at(seed, 0, i).below(0, static_cast<std::uint32_t>(sequence)));
  }
  return lengths;
}

TEST_CASE("packing holds each sample once and no row is over-full", "[text][property]") {
  const int sequence = GENERATE(1, 2, 63, 64, 65, 512);
  const std::size_t size = GENERATE(0, 1, 2, 1000);
  const auto lengths = random_lengths(size, sequence, static_cast<std::uint64_t>(sequence));
  const Packing packing = pack(lengths, sequence, 7);
  std::vector<std::uint32_t> seen = packing.samples;
  std::ranges::sort(seen);
  std::vector<std::uint32_t> all(size);
  std::iota(all.begin(), all.end(), 0U);
  REQUIRE(seen == all);
  REQUIRE(packing.begins.front() == 0);
  REQUIRE(packing.begins.back() == size);
  int max = 0;
  for (std::size_t row = 0; row + 1 < packing.begins.size(); ++row) {
    int sum = 0, count = 0;
    for (std::uint32_t i = packing.begins[row]; i < packing.begins[row + 1]; ++i, ++count) {
      sum += lengths[packing.samples[i]];
    }
    REQUIRE(count > 0);
    REQUIRE(sum <= sequence);
    max = std::max(max, count);
  }
  REQUIRE(packing.max_samples == max);
}

TEST_CASE("packing is a function of the seed, and close to full rows", "[text]") {
  const auto lengths = random_lengths(5000, 512, 3);
  const Packing first = pack(lengths, 512, 1), again = pack(lengths, 512, 1),
                other = pack(lengths, 512, 2);
  REQUIRE((first.begins == again.begins && first.samples == again.samples));
  REQUIRE(first.samples != other.samples);
  const double tokens = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  REQUIRE(tokens / (static_cast<double>(first.rows()) * 512) > 0.95);
}

TEST_CASE("best fit takes the fullest row that has room", "[text]") {
  // Whatever the order: 6 and 4, 7 and 3 fill a row each.
  const Packing packing = pack(std::vector<std::int32_t>{6, 7, 4, 3}, 10, 0);
  REQUIRE(packing.rows() >= 2);
  const Packing alone = unpacked(3);
  REQUIRE(alone.rows() == 3);
  REQUIRE(alone.max_samples == 1);
}

TEST_CASE("numbers are read with commas", "[text]") {
  REQUIRE(with_commas(0) == "0");
  REQUIRE(with_commas(999) == "999");
  REQUIRE(with_commas(1000) == "1,000");
  REQUIRE(with_commas(87599) == "87,599");
  REQUIRE(with_commas(1234567) == "1,234,567");
}

}  // namespace
}  // namespace dstrain::text
