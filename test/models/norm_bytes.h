#pragma once

#include <string_view>

#include "engine/nn/block.h"
#include "engine/nn/block_state.h"

namespace dstrain::test {

/// What a GPU keeps of the block's batch norms that a CPU does not: scale and shift.
inline Bytes norm_bytes_of_gpu(Block& block) {
  Bytes bytes = 0;
  for (const BlockState* state : block.state()) {
    if (state->part.name.ends_with(".running_mean"))
      bytes += 2 * state->part.numel() * static_cast<Bytes>(sizeof(float));
  }
  return bytes;
}

}  // namespace dstrain::test
