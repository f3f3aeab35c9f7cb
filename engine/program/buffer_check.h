#pragma once

#include <string>
#include <vector>

#include "engine/program/lane_order.h"
#include "engine/program/program.h"

namespace dstrain {

/// The rules of `check` about buffers: contents, lifetimes, conflicts between lanes and gradients.
/// `program` lists several runs of `run_length` actions, one after the other. Indices must be
/// valid. Appends a sentence for each broken rule to `problems`.
void check_buffers(const Program& program, int run_length, const Layout& layout,
                   const ModelCost& cost, const LaneOrder& order,
                   std::vector<std::string>& problems);

}  // namespace dstrain
