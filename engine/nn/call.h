#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/block.h"

namespace dstrain {

/// What modules need of a micro-batch beside their input.
struct Call {
  at::Tensor dropout_seed = {};  ///< BlockContext::dropout_seed
  ops::OwnRows own = {};         ///< Batch::own
  Peers peers = {};              ///< BlockContext::peers

  [[nodiscard]] static Call of(const Batch& batch, const BlockContext& context) {
    return {.dropout_seed = context.dropout_seed, .own = batch.own, .peers = context.peers};
  }

  /// The ranks that have the other parts of a cut module; null where none is cut.
  [[nodiscard]] Communicator* tensor() const { return peers.along(CommAxis::tensor); }
};

}  // namespace dstrain
