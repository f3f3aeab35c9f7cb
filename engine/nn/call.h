#pragma once

#include <ATen/core/Tensor.h>

namespace dstrain {

class Communicator;

/// What a call of a module needs beside its input.
struct Call {
  at::Tensor dropout_seed = {};  ///< BlockContext::dropout_seed
  /// Of the ranks that have the other parts of a cut module; null where none is cut.
  Communicator* tensor = nullptr;
};

}  // namespace dstrain
