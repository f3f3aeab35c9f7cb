#pragma once

#include <string>
#include <vector>

#include "engine/program/lane_order.h"
#include "engine/program/program.h"

namespace dstrain {

/// Uses of the same elements of a buffer, of which one changes them, wait for each other, in as
/// many runs of the program as use a batch buffer twice (buffer_runs). `order` is that of these
/// runs. The indices in the work are valid. Adds a sentence to `problems` for each missing wait.
void check_buffer_order(const Program& program, const Layout& layout, const ModelCost& cost,
                        const LaneOrder& order, std::vector<std::string>& problems);
[[nodiscard]] int buffer_runs(const Program& program);

}  // namespace dstrain
