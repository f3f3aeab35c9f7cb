#include "engine/kernels/hash/hash.h"

#include <ATen/ops/zeros.h>

#include <cstdint>
#include <set>
#include <vector>

#include "engine/kernels/hash/hash_math.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// The hash by which ranks compare what they hold.
namespace dstrain {
namespace {

std::uint64_t hash_of(const at::Tensor& x, std::uint64_t salt = 0) {
  const at::Tensor sum = at::zeros({1}, x.options().dtype(at::kLong));
  add_hash(x, salt, sum);
  return static_cast<std::uint64_t>(sum.item<std::int64_t>());
}

/// As kernels.h defines it, one byte after the other.
std::uint64_t defined_hash(const at::Tensor& x, std::uint64_t salt) {
  const at::Tensor host = x.cpu();
  const auto* bytes = static_cast<const std::uint8_t*>(host.const_data_ptr());
  const auto count = static_cast<std::uint64_t>(host.nbytes());
  std::uint64_t sum = 0;
  for (std::uint64_t word = 0; 8 * word < count; ++word) {
    std::uint64_t value = 0;
    for (std::uint64_t k = 0; k < 8 && 8 * word + k < count; ++k)
      value |= std::uint64_t{bytes[8 * word + k]} << (8 * k);
    sum += kernels::mixed_word(value, (salt << 40) + word);
  }
  return sum;
}

TEST_CASE("a hash is that of the words as they lie in memory", "[kernels][hash]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kLong);
  const std::int64_t elements = GENERATE(1, 3, 4, 8, 257, 70'001, 1'000'003);
  const std::int64_t skipped = GENERATE(0, 1, 5);
  if (!test::worth_it(device, elements) && elements != 70'001) return;
  CAPTURE(device.str(), c10::toString(dtype), elements, skipped);
  test::Random random(3, at::kCPU);
  const at::Tensor whole =
      (random({elements + skipped}, at::kFloat) * 1000).to(device, dtype).contiguous();
  const at::Tensor x = whole.narrow(0, skipped, elements);
  REQUIRE(hash_of(x) == defined_hash(x, 0));
  REQUIRE(hash_of(x, 7) == defined_hash(x, 7));
  REQUIRE(hash_of(x) != hash_of(x, 7));
}

TEST_CASE("any wrong bit, and words that change places, change a hash", "[kernels][hash]") {
  const auto device = GENERATE(from_range(test::devices()));
  test::Random random(5, at::kCPU);
  const at::Tensor x = random({61}, at::kFloat);
  std::set<std::uint64_t> seen = {hash_of(x.to(device))};
  auto* words = static_cast<std::uint32_t*>(x.mutable_data_ptr());
  for (std::size_t i = 0; i < 61; ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      words[i] ^= 1U << bit;
      REQUIRE(seen.insert(hash_of(x.to(device))).second);
      words[i] ^= 1U << bit;
    }
  }
  std::swap(words[2], words[10]);
  REQUIRE(seen.insert(hash_of(x.to(device))).second);
}

TEST_CASE("hashes of parts add up", "[kernels][hash]") {
  const auto device = GENERATE(from_range(test::devices()));
  test::Random random(9, at::kCPU);
  const at::Tensor a = random({100}, at::kFloat).to(device),
                   b = random({50}, at::kFloat).to(device);
  const at::Tensor sum = at::zeros({1}, a.options().dtype(at::kLong));
  add_hash(a, 1, sum);
  add_hash(b, 2, sum);
  REQUIRE(static_cast<std::uint64_t>(sum.item<std::int64_t>()) == hash_of(a, 1) + hash_of(b, 2));
}

}  // namespace
}  // namespace dstrain
