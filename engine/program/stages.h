#pragma once

#include <vector>

namespace dstrain {

/// Consecutive blocks that a rank runs at once; a rank of the pipeline has one chunk or several.
struct Stages {
  std::vector<int> first_block = {0};  ///< of each chunk, in model order
  std::vector<int> rank = {0};         ///< pipeline coordinate that holds each chunk

  [[nodiscard]] int chunks() const { return static_cast<int>(first_block.size()); }
  /// Coordinates of the pipeline axis.
  [[nodiscard]] int ranks() const;
  [[nodiscard]] int chunk_of(int block) const;
  [[nodiscard]] int rank_of(int block) const {
    return rank[static_cast<std::size_t>(chunk_of(block))];
  }
  /// One past the last block of `chunk` in a model of `blocks` blocks.
  [[nodiscard]] int end_block(int chunk, int blocks) const;
  bool operator==(const Stages&) const = default;
};

/// Which rank has which chunk, with two ranks and four chunks.
enum class ChunkOrder {
  loop,  ///< 0 1 0 1
  v,     ///< 0 1 1 0, further chunks in the same way
};
/// Coordinates of `chunks_per_rank` chunks of each of `ranks` ranks, in model order.
[[nodiscard]] std::vector<int> chunk_ranks(int ranks, int chunks_per_rank, ChunkOrder order);

/// One chunk for each entry of `rank`, of as many blocks each as can be. Error{internal} with more
/// chunks than blocks.
[[nodiscard]] Stages even_stages(int blocks, std::vector<int> rank);
/// The same with one chunk per rank, in rank order.
[[nodiscard]] Stages even_stages(int blocks, int ranks);

/// The cut into consecutive chunks, at least one block each, whose dearest chunk costs least: the
/// first block of each. `costs` of the blocks, not negative.
[[nodiscard]] std::vector<int> minimax_cut(const std::vector<double>& costs, int chunks);

}  // namespace dstrain
