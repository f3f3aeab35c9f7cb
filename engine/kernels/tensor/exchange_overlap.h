#pragma once

#include "engine/device/stream.h"
#include "engine/kernels/parameter.h"

namespace dstrain::ops {

/// Lets the exchanges of a backward go on beside products that it has put off (Parameter::later).
/// What is left of them when it ends, the caller runs.
struct ExchangeOverlap {
  Stream stream;               ///< of the exchanges
  DeferredWork products = {};  ///< put off, and not yet run
};

}  // namespace dstrain::ops
