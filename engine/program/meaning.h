#pragma once

#include <string>
#include <vector>

#include "engine/program/program.h"

namespace dstrain {

/// Follows the work of a program on symbols, in list order, and adds to `problems` a sentence for
/// each rule that is broken:
/// - an update reads the sum of its group's gradient over all ranks that hold the same weights and
///   over all micro-batches, each once and at scale 1, after norm, which reads the same sums, each
///   element once over all ranks;
/// - a run reads whole parameters with all updates of the steps before, the output of the block
///   before, and the gradient of its own output, of its micro-batch, and nothing else;
/// - every block runs on every micro-batch, which are loaded in order;
/// - the step ends as it began, every state once updated, and all else is freed, by what used it
///   last or by an action that only frees;
/// - nothing is read that is not there, written where something else is that was not freed, or
///   written again as it is; all but moves and updates by the CPU is on the device;
/// - an action's work is about its group or block, its micro-batch and its part.
/// Every rank runs the same list, so what one rank holds says what the others do. The indices in
/// the work are valid.
void check_meaning(const Program& program, const Layout& layout, const ModelCost& cost,
                   std::vector<std::string>& problems);

}  // namespace dstrain
