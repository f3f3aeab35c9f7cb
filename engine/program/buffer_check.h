#pragma once

#include <string>
#include <vector>

#include "engine/program/lane_order.h"
#include "engine/program/program.h"

namespace dstrain {

/// The rules of `check` about buffers: contents, lifetimes, conflicts between lanes and gradients.
/// Indices in `program` must be valid. Appends a sentence for each broken rule to `problems`.
void check_buffers(const Program& program, const Layout& layout, const ModelCost& cost,
                   const LaneOrder& order, std::vector<std::string>& problems);

}  // namespace dstrain
