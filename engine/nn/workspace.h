#pragma once

#include "engine/base/units.h"

namespace dstrain {

/// Most that a module holds at once beside its input, its output and what it has saved.
struct Workspace {
  Bytes forward = 0;
  /// Less what it has let go of the saved by then.
  Bytes backward = 0;

  [[nodiscard]] Workspace operator+(const Workspace& beside) const {
    return {.forward = forward + beside.forward, .backward = backward + beside.backward};
  }
};

}  // namespace dstrain
