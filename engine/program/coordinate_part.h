#pragma once

#include "engine/program/cost.h"
#include "engine/program/layout.h"

namespace dstrain {

/// What one coordinate of a pipeline has of a model. Keeps references to its arguments.
class CoordinatePart {
 public:
  CoordinatePart(const Layout& layout, const ModelCost& cost, int coordinate);

  /// The coordinate runs the block.
  [[nodiscard]] bool local(int block) const { return layout_.stages.rank_of(block) == coordinate_; }
  /// The block after it, if any, is in another chunk.
  [[nodiscard]] bool ends_chunk(int block) const;
  /// A block of the coordinate reads the group.
  [[nodiscard]] bool holds(int group) const { return layout_.holds(coordinate_, group); }
  /// The first block of any coordinate that trains anything; one past the last where none does.
  [[nodiscard]] int first_trained() const { return first_trained_; }

 private:
  const Layout& layout_;
  int coordinate_;
  int num_blocks_;
  int first_trained_;
};

}  // namespace dstrain
