#include "engine/models/image/block.h"

#include "engine/base/error.h"

namespace dstrain {

at::Tensor ImageBlock::input_of(const Tensors& input, const Batch& batch) const {
  DSTRAIN_CHECK(input.size() == (stem_ ? 0u : 1u), name_ + ": wrong number of inputs");
  return stem_ ? batch.images.permute({0, 2, 3, 1}) : input[0];
}

}  // namespace dstrain
