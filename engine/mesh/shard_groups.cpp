#include "engine/mesh/shard_groups.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain {

ShardGroups::ShardGroups(int shards, int degree) : shards_(shards), degree_(degree) {
  if (shards >= 1 && degree >= 1 && shards % degree == 0) return;
  throw Error(ErrorKind::usage,
              fmt::format("inner groups of {} ranks on a shard axis of {}", degree, shards),
              "use a number that divides the ranks of the shard axis");
}

Range ShardGroups::second_shard(std::int64_t elements, int shard) const {
  DSTRAIN_CHECK(shard >= 0 && shard < shards_ && elements % (shards_ * kFlatAlignment) == 0,
                fmt::format("second shard {} of {} elements over {}", shard, elements, shards_));
  const std::int64_t size = elements / degree_;
  return {inner(shard) * size, (inner(shard) + 1) * size};
}

std::vector<int> ShardGroups::inner_ranks(const Mesh& mesh, int rank) const {
  const std::vector<int> all = mesh.group(rank, Axis::shard);
  const int place = outer(mesh.coordinate(rank, Axis::shard));
  DSTRAIN_CHECK(static_cast<int>(all.size()) == shards_, "a mesh of another shard degree");
  std::vector<int> ranks;
  for (int i = 0; i < degree_; ++i)
    ranks.push_back(all.at(static_cast<std::size_t>(shard(place, i))));
  return ranks;
}

std::vector<int> ShardGroups::outer_ranks(const Mesh& mesh, int rank) const {
  const std::vector<int> all = mesh.group(rank, Axis::shard);
  const int place = inner(mesh.coordinate(rank, Axis::shard));
  DSTRAIN_CHECK(static_cast<int>(all.size()) == shards_, "a mesh of another shard degree");
  std::vector<int> ranks;
  for (int o = 0; o < outer_degree(); ++o)
    ranks.push_back(all.at(static_cast<std::size_t>(shard(o, place))));
  return ranks;
}

}  // namespace dstrain
