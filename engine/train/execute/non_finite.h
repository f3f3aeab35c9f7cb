#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

/// Where values stopped being finite in a step. All ranks find the same.
struct NonFiniteSite {
  /// The first that applies is named.
  enum class Where {
    parameter,  ///< before the step
    output,     ///< of a block, in the forward pass
    gradient,   ///< of a group, after a forward pass whose values are all finite
    nowhere,    ///< all is finite when the step is computed again
  };
  Where where = Where::nowhere;
  int rank = -1;  ///< of the world; -1: cannot be told, gradients are sums over them
  int micro_batch = -1;
  int block = -1;
  int group = -1;             ///< parameter, gradient
  int tensor = -1;            ///< of the group
  double largest_input = -1;  ///< magnitude, of an output; -1: the block reads the batch
};

}  // namespace dstrain
