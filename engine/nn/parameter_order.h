#pragma once

#include <vector>

#include "engine/kernels/parameter.h"

namespace dstrain {

/// The same weights, matrices before vectors: the small tensors of a block then lie together at the
/// end of its flat buffer.
[[nodiscard]] std::vector<Parameter*> matrices_first(std::vector<Parameter*> list);

}  // namespace dstrain
