#pragma once

#include <vector>

#include "engine/program/cost.h"

namespace dstrain {

enum class Pass { forward, backward };

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

/// One chunk per rank, in rank order, of as many blocks each as can be. Error{internal} with more
/// ranks than blocks.
[[nodiscard]] Stages even_stages(int blocks, int ranks);

/// One stay of a rank in a chunk.
struct ChunkVisit {
  Pass pass = Pass::forward;
  int chunk = 0;
  int micro_batch = 0;
  bool operator==(const ChunkVisit&) const = default;
};

/// Per pipeline coordinate, in the order in which the rank runs them.
using PipelineSchedule = std::vector<std::vector<ChunkVisit>>;

enum class ScheduleName { one_f_one_b, gpipe };
[[nodiscard]] PipelineSchedule make_schedule(ScheduleName name, const Stages& stages,
                                             int micro_batches);

/// All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965, sec. 2.3). One chunk per
/// rank, in rank order.
[[nodiscard]] PipelineSchedule gpipe(const Stages& stages, int micro_batches);
/// As many forwards as ranks follow, then forward and backward in turn (Narayanan et al. 2021,
/// arXiv:2104.04473, sec. 2.2). One chunk per rank, in rank order. With one rank: one micro-batch
/// after the other.
[[nodiscard]] PipelineSchedule one_f_one_b(const Stages& stages, int micro_batches);
/// Forwards only, for evaluation; any stages.
[[nodiscard]] PipelineSchedule forwards(const Stages& stages, int micro_batches);

/// One stay of the compute lane in a block.
struct Visit {
  int block = 0;
  int micro_batch = 0;
  Pass pass = Pass::forward;
};

/// The blocks of `visits`, backward ones down to `first_trained`.
[[nodiscard]] std::vector<Visit> block_visits(const std::vector<ChunkVisit>& visits,
                                              const Stages& stages, int blocks, int first_trained);

/// The first block that trains anything; the backward pass ends there. Error{internal} when there
/// is none.
[[nodiscard]] int first_trained_block(const ModelCost& cost);

}  // namespace dstrain
