#include "engine/mesh/mesh.h"

#include <set>

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

Mesh make_mesh(int pipeline, int data, int shard, int expert, int sequence, int tensor) {
  const int world = pipeline * data * shard * expert * sequence * tensor;
  return Mesh(world, {pipeline, data, shard, expert, sequence, tensor});
}

std::string message_of(int world, const Degrees& degrees) {
  try {
    const Mesh mesh(world, degrees);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return std::string(error.what()) + "; " + error.hint();
  }
  return "no error";
}

TEST_CASE("every axis partitions the world into groups of equal size", "[mesh][property]") {
  const int pipeline = GENERATE(1, 2, 3), data = GENERATE(1, 2), shard = GENERATE(1, 2, 4);
  const int expert = GENERATE(1, 2), sequence = GENERATE(1, 3), tensor = GENERATE(1, 2, 8);
  const Mesh mesh = make_mesh(pipeline, data, shard, expert, sequence, tensor);
  for (const Axis axis : kAxes) {
    CAPTURE(mesh.describe(), axis_name(axis));
    std::multiset<int> firsts;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const auto group = mesh.group(rank, axis);
      REQUIRE(static_cast<int>(group.size()) == mesh.degree(axis));
      REQUIRE(group.at(static_cast<std::size_t>(mesh.coordinate(rank, axis))) == rank);
      for (const int member : group) REQUIRE(mesh.group(member, axis) == group);
      firsts.insert(group.front());
    }
    // Each group is seen by each of its members.
    for (const int first : firsts)
      REQUIRE(static_cast<int>(firsts.count(first)) == mesh.degree(axis));
  }
}

TEST_CASE("the coordinates of a rank on all axes are its own", "[mesh][property]") {
  const Mesh mesh = make_mesh(2, 2, 2, 2, 2, 2);
  std::set<std::vector<int>> seen;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<int> coordinates;
    for (const Axis axis : kAxes) coordinates.push_back(mesh.coordinate(rank, axis));
    seen.insert(coordinates);
  }
  REQUIRE(seen.size() == 64);
}

TEST_CASE("the last axis is the innermost: its ranks are neighbours", "[mesh]") {
  const Mesh mesh = make_mesh(1, 2, 2, 1, 1, 2);
  CHECK(mesh.group(5, Axis::tensor) == std::vector<int>{4, 5});
  CHECK(mesh.group(5, Axis::shard) == std::vector<int>{5, 7});
  CHECK(mesh.group(5, Axis::data) == std::vector<int>{1, 5});
}

TEST_CASE("a group along two axes lists each rank at its coordinate", "[mesh][property]") {
  const int data = GENERATE(1, 2, 3), shard = GENERATE(1, 2, 4), tensor = GENERATE(1, 2);
  const Mesh mesh = make_mesh(2, data, shard, 1, 1, tensor);
  REQUIRE(mesh.degree(kDataAxes) == data * shard);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto group = mesh.group(rank, kDataAxes);
    REQUIRE(static_cast<int>(group.size()) == data * shard);
    REQUIRE(group.at(static_cast<std::size_t>(mesh.coordinate(rank, kDataAxes))) == rank);
    REQUIRE(std::set<int>(group.begin(), group.end()).size() == group.size());
    for (const int member : group) {
      REQUIRE(mesh.group(member, kDataAxes) == group);
      REQUIRE(mesh.coordinate(member, Axis::tensor) == mesh.coordinate(rank, Axis::tensor));
      REQUIRE(mesh.coordinate(member, Axis::pipeline) == mesh.coordinate(rank, Axis::pipeline));
    }
  }
}

TEST_CASE("a mesh that does not fill the world says both numbers and valid ones", "[mesh]") {
  CHECK(message_of(8, {.data = 2, .shard = 3}) ==
        "the mesh data 2 x shard 3 has 6 ranks, the world has 8; use 6 ranks, or degrees whose "
        "product is 8");
  CHECK(message_of(8, {.data = 1, .shard = 4}) ==
        "the mesh shard 4 has 4 ranks, the world has 8; use data 2, or 4 ranks");
  CHECK(message_of(8, {}) ==
        "the mesh without axes has 1 rank, the world has 8; use data 8, or 1 rank");
  CHECK(message_of(4, {.data = 4, .tensor = 0}) ==
        "the degree of axis tensor is 0; use at least 1");
  CHECK(message_of(0, {}) == "a world of 0 ranks; use at least 1");
}

TEST_CASE("a mesh is described by its axes above one", "[mesh]") {
  CHECK(make_mesh(1, 2, 4, 1, 1, 1).describe() == "data 2 x shard 4");
  CHECK(make_mesh(2, 1, 1, 1, 1, 8).describe() == "pipeline 2 x tensor 8");
  CHECK(make_mesh(1, 1, 1, 1, 1, 1).describe() == "1 rank");
}

TEST_CASE("a rank outside the world is our own fault", "[mesh]") {
  const Mesh mesh = make_mesh(1, 2, 1, 1, 1, 1);
  CHECK_THROWS_AS(mesh.coordinate(2, Axis::data), Error);
  CHECK_THROWS_AS(mesh.coordinate(-1, Axis::data), Error);
}

}  // namespace
}  // namespace dstrain
