#include "engine/models/image/block.h"

#include "engine/base/error.h"
#include "engine/nn/block_state.h"

namespace dstrain {

void ImageBlock::put_under(const std::string& prefix) {
  name_.insert(0, prefix);
  for (Parameter* parameter : parameters()) {
    for (Piece& part : parameter->parts) part.name.insert(0, prefix);
  }
  for (BlockState* state : this->state()) state->part.name.insert(0, prefix);
}

FeatureSize ImageBlock::output() {
  const Features made{.size = output_sizes({.micro_batch = 1}).at(0)};
  return {made.image().height, made.image().width, made.image().channels};
}

Tensors ImageBlock::input_of(const Tensors& input, const Batch& batch) const {
  DSTRAIN_CHECK(input.size() == (stem_ ? 0u : 1u), name_ + ": wrong number of inputs");
  return {stem_ ? batch.images.permute({0, 2, 3, 1}) : input[0]};
}

}  // namespace dstrain
