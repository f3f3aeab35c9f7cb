#include "engine/program/coordinate_part.h"

#include <algorithm>

#include "engine/base/index.h"

namespace dstrain {

CoordinatePart::CoordinatePart(const Layout& layout, const ModelCost& cost, int coordinate)
    : layout_(layout),
      coordinate_(coordinate),
      num_blocks_(static_cast<int>(cost.blocks.size())),
      first_trained_(num_blocks_) {
  for (int b = num_blocks_ - 1; b >= 0; --b) {
    for (const int group : cost.blocks[to_index(b)].groups) {
      if (layout.groups[to_index(group)].trainable) first_trained_ = b;
    }
  }
}

bool CoordinatePart::ends_chunk(int block) const {
  const Stages& stages = layout_.stages;
  return block + 1 < num_blocks_ && stages.chunk_of(block) != stages.chunk_of(block + 1);
}

}  // namespace dstrain
