#pragma once

#include <memory>

#include "engine/base/error.h"
#include "engine/nn/block.h"

namespace dstrain {

/// A block of an image model as what it is.
template <typename As>
[[nodiscard]] std::unique_ptr<As> as_block(std::unique_ptr<Block> block) {
  auto* as = dynamic_cast<As*>(block.get());
  DSTRAIN_CHECK(as != nullptr, block->name() + ": no such block of an image model");
  (void)block.release();
  return std::unique_ptr<As>(as);
}

}  // namespace dstrain
