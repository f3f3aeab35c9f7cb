#pragma once

#include "engine/mesh/split.h"
#include "recipes/schema/families.h"

namespace dstrain {

/// Error{usage} where layers of `sizes` cannot be cut into so many parts: parallel.tensor divides
/// heads and MLP width, and divides the key and value heads or is a multiple of them. Names the
/// nearest degrees that work.
void require_tensor_degree(const ModelSizes& sizes, const AxisPart& tensor);

}  // namespace dstrain
