#pragma once

#include <string>

#include "engine/program/program.h"

namespace dstrain {

/// The program for a reader: its buffers by role, then a line for each action, in the order of the
/// list: lane, name, what it does on which buffers, what it frees, and the actions of other lanes
/// for which it waits (with a "'": of the step before). Actions that only repeat what two others
/// did for another block or micro-batch are counted in a line.
[[nodiscard]] std::string program_text(const Program& program, const Layout& layout,
                                       const ModelCost& cost);

/// One piece of work, as in a line of program_text: "all-gather along shard: parameters of block0
/// [own] -> parameters of block0".
[[nodiscard]] std::string describe(const Work& work, const Program& program, const ModelCost& cost);

}  // namespace dstrain
