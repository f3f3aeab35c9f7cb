#include "engine/mesh/shard_groups.h"

#include <set>

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("inner and outer groups cut the shard axis without gap or overlap",
          "[shard_groups][property]") {
  const int data = GENERATE(1, 2), shards = GENERATE(1, 2, 4, 6, 8), tensor = GENERATE(1, 2);
  const Mesh mesh(data * shards * tensor, {.data = data, .shard = shards, .tensor = tensor});
  for (int degree = 1; degree <= shards; ++degree) {
    if (shards % degree != 0) continue;
    CAPTURE(data, shards, tensor, degree);
    const ShardGroups groups(shards, degree);
    REQUIRE(groups.degree() * groups.outer_degree() == shards);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const int shard = mesh.coordinate(rank, Axis::shard);
      const auto inner = groups.inner_ranks(mesh, rank), outer = groups.outer_ranks(mesh, rank);
      REQUIRE(static_cast<int>(inner.size()) == degree);
      REQUIRE(static_cast<int>(outer.size()) == groups.outer_degree());
      REQUIRE(inner.at(static_cast<std::size_t>(groups.inner(shard))) == rank);
      REQUIRE(outer.at(static_cast<std::size_t>(groups.outer(shard))) == rank);
      REQUIRE(groups.shard(groups.outer(shard), groups.inner(shard)) == shard);
      for (const int other : inner) REQUIRE(groups.inner_ranks(mesh, other) == inner);
      for (const int other : outer) REQUIRE(groups.outer_ranks(mesh, other) == outer);
      // From each inner group one, and together the whole axis.
      std::set<int> reached;
      for (const int other : outer) {
        for (const int neighbour : groups.inner_ranks(mesh, other)) reached.insert(neighbour);
      }
      const auto axis = mesh.group(rank, Axis::shard);
      REQUIRE(reached == std::set<int>(axis.begin(), axis.end()));
    }
  }
}

TEST_CASE("inner groups are neighbours on the shard axis", "[shard_groups]") {
  const Mesh mesh(16, {.data = 2, .shard = 4, .tensor = 2});
  const ShardGroups groups(4, 2);
  CHECK(groups.inner_ranks(mesh, 5) == std::vector<int>{5, 7});
  CHECK(groups.outer_ranks(mesh, 5) == std::vector<int>{1, 5});
  CHECK(groups.inner_ranks(mesh, 8) == std::vector<int>{8, 10});
  CHECK(groups.outer_ranks(mesh, 8) == std::vector<int>{8, 12});
}

TEST_CASE("second shards of an inner group follow one another and are the whole",
          "[shard_groups]") {
  const int degree = GENERATE(1, 2, 4);
  const ShardGroups groups(4, degree);
  const std::int64_t elements = 4 * 3 * kFlatAlignment;
  for (int outer = 0; outer < groups.outer_degree(); ++outer) {
    std::int64_t next = 0;
    for (int inner = 0; inner < degree; ++inner) {
      const Range part = groups.second_shard(elements, groups.shard(outer, inner));
      REQUIRE(part.begin == next);
      REQUIRE(part.size() == elements / degree);
      next = part.end;
    }
    REQUIRE(next == elements);
  }
}

TEST_CASE("a degree that does not divide the shards is refused with both", "[shard_groups]") {
  CHECK_THROWS_WITH(ShardGroups(6, 4), "inner groups of 4 ranks on a shard axis of 6");
  CHECK_THROWS_AS(ShardGroups(4, 0), Error);
  CHECK_THROWS_AS(ShardGroups(4, 8), Error);
  CHECK_THROWS_AS(ShardGroups(4, 2).second_shard(128, 0), Error);
}

}  // namespace
}  // namespace dstrain
