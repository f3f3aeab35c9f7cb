#pragma once

#include <cstdint>

#include "engine/mesh/split.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// Error{usage} where layers of `sizes` cannot be cut into so many parts: parallel.tensor divides
/// heads and MLP width (0: no layer has such an MLP), and divides the key and value heads or is a
/// multiple of them. Names the nearest degrees that work.
void require_tensor_degree(const ModelSizes& sizes, const AxisPart& tensor);

/// Error{usage} where the ranks of both axes do not divide the experts, which lie whole on a rank.
/// Names the nearest degrees that work.
void require_expert_degree(std::int64_t experts, const Splits& splits);

}  // namespace dstrain
