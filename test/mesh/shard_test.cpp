#include "engine/mesh/shard.h"

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("even parts follow one another, cover all and differ by at most one",
          "[shard][property]") {
  const std::int64_t total = GENERATE(0, 1, 2, 7, 8, 1000, 1001), parts = GENERATE(1, 2, 3, 7, 64);
  CAPTURE(total, parts);
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < parts; ++i) {
    const Range part = even_part(total, parts, i);
    REQUIRE(part.begin == next);
    REQUIRE(part.size() >= total / parts);
    REQUIRE(part.size() <= total / parts + 1);
    next = part.end;
  }
  REQUIRE(next == total);
}

TEST_CASE("even_part refuses an index outside the parts", "[shard]") {
  CHECK_THROWS_AS(even_part(10, 2, 2), Error);
  CHECK_THROWS_AS(even_part(10, 0, 0), Error);
  CHECK_THROWS_AS(even_part(-1, 2, 0), Error);
}

TEST_CASE("the intersection of ranges is what both hold", "[shard]") {
  CHECK(intersect({0, 10}, {5, 20}) == Range{5, 10});
  CHECK(intersect({5, 20}, {0, 10}) == Range{5, 10});
  CHECK(intersect({0, 10}, {3, 4}) == Range{3, 4});
  CHECK(intersect({0, 5}, {5, 10}).empty());
  CHECK(intersect({0, 5}, {8, 10}).empty());
}

TEST_CASE("tensors of a flat group are aligned, in order and apart", "[shard]") {
  const FlatGroup flat({3, 128, 0, 129}, 1);
  CHECK(flat.num_tensors() == 4);
  CHECK(flat.offset(0) == 0);
  CHECK(flat.offset(1) == 128);
  CHECK(flat.offset(2) == 256);
  CHECK(flat.offset(3) == 256);
  CHECK(flat.size(3) == 129);
  CHECK(flat.padded() == 512);
}

TEST_CASE("the shards of a flat group own each element exactly once", "[shard][property]") {
  const int shards = GENERATE(1, 2, 3, 4, 8, 64);
  const std::vector<std::int64_t> sizes =
      GENERATE(std::vector<std::int64_t>{1}, std::vector<std::int64_t>{768, 768 * 3, 5, 1},
               std::vector<std::int64_t>{100000, 0, 127, 128}, std::vector<std::int64_t>{});
  const FlatGroup flat(sizes, shards);
  CAPTURE(shards, sizes);
  REQUIRE(flat.padded() % shards == 0);
  REQUIRE(flat.shard_size() % kFlatAlignment == 0);
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    std::int64_t next = 0;
    for (int s = 0; s < shards; ++s) {
      const Range owned = flat.owned(t, s);
      if (owned.empty()) continue;
      REQUIRE(owned.begin == next);
      REQUIRE(flat.offset(t) + owned.begin >= flat.shard(s).begin);
      REQUIRE(flat.offset(t) + owned.end <= flat.shard(s).end);
      next = owned.end;
    }
    REQUIRE(next == sizes[t]);
  }
}

TEST_CASE("padding is less than one aligned row over the shards", "[shard]") {
  const FlatGroup flat({1000}, 4);
  CHECK(flat.padded() == 1024);
  CHECK(flat.shard(3) == Range{768, 1024});
  CHECK(flat.owned(0, 3) == Range{768, 1000});
  CHECK_THROWS_AS(flat.shard(4), Error);
  CHECK_THROWS_AS(FlatGroup({1}, 0), Error);
}

}  // namespace
}  // namespace dstrain
