#pragma once

#include <ATen/core/Tensor.h>

#include "engine/nn/block.h"

namespace dstrain {

/// What modules need of a micro-batch beside their input.
struct Call {
  at::Tensor dropout_seed = {};             ///< BlockContext::dropout_seed
  ops::OwnRows own = {};                    ///< Batch::own
  at::Tensor valid = {};                    ///< Batch::valid
  Mode mode = Mode::train;                  ///< BlockContext::mode
  Peers peers = {};                         ///< BlockContext::peers
  bool keep_hidden = false;                 ///< BlockContext::keep_hidden
  const ops::CachedRows* cached = nullptr;  ///< BlockContext::cached

  [[nodiscard]] static Call of(const Batch& batch, const BlockContext& context) {
    return {.dropout_seed = context.dropout_seed,
            .own = batch.own,
            .valid = batch.valid,
            .mode = context.mode,
            .peers = context.peers,
            .keep_hidden = context.keep_hidden,
            .cached = context.cached};
  }
  /// By a training step, whether for the first time or again.
  [[nodiscard]] bool trains() const { return mode == Mode::train || mode == Mode::recompute; }

  [[nodiscard]] ops::Keep hidden() const {
    return keep_hidden ? ops::Keep::input : ops::Keep::nothing;
  }

  /// The ranks that have the other parts of a cut module; null where none is cut.
  [[nodiscard]] Communicator* tensor() const { return peers.along(Axis::tensor); }
};

}  // namespace dstrain
