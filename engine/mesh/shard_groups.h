#pragma once

#include <vector>

#include "engine/mesh/mesh.h"
#include "engine/mesh/shard.h"

namespace dstrain {

/// The shard axis cut in two: `degree` consecutive coordinates make an inner group (the ranks of a
/// node, say), those with the same place in their inner groups make an outer one. Coordinate =
/// outer index * degree + inner index. With degree 1 the outer group is all ranks, with degree =
/// shards the inner one. Wang et al. 2023 (ZeRO++), arXiv:2306.10209, sec. 3.2 and 3.3.
class ShardGroups {
 public:
  /// Error{usage} with the numbers where `degree` does not divide `shards`.
  ShardGroups(int shards, int degree);

  [[nodiscard]] int shards() const { return shards_; }
  /// Ranks of an inner group.
  [[nodiscard]] int degree() const { return degree_; }
  /// Ranks of an outer group, and so the number of inner groups.
  [[nodiscard]] int outer_degree() const { return shards_ / degree_; }

  /// Index of a coordinate in its inner and in its outer group.
  [[nodiscard]] int inner(int shard) const { return shard % degree_; }
  [[nodiscard]] int outer(int shard) const { return shard / degree_; }
  [[nodiscard]] int shard(int outer, int inner) const { return outer * degree_ + inner; }

  /// The second shard: what `shard` keeps of a gathered flat group of `elements` (a multiple of
  /// shards * kFlatAlignment), so that its inner group can gather it again; in the order of inner
  /// indices these ranges are the whole.
  [[nodiscard]] Range second_shard(std::int64_t elements, int shard) const;

  /// Global ranks of the groups of `rank`, in the order of their indices. The mesh has as many
  /// shards.
  [[nodiscard]] std::vector<int> inner_ranks(const Mesh& mesh, int rank) const;
  [[nodiscard]] std::vector<int> outer_ranks(const Mesh& mesh, int rank) const;

 private:
  int shards_;
  int degree_;
};

}  // namespace dstrain
