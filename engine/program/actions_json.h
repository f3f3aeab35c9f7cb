#pragma once

#include <nlohmann/json.hpp>

#include "engine/program/cost.h"
#include "engine/program/phases.h"
#include "engine/program/program.h"
#include "engine/program/simulate.h"

namespace dstrain {

/// "forward", "backward" or "optimizer", which is norm and update.
[[nodiscard]] const char* trace_phase(Phase phase);

/// Each action of `program` as rank{r}_actions.json lists it (engine/trace/README.md).
[[nodiscard]] nlohmann::ordered_json actions_json(const Program& program, const ModelCost& cost,
                                                  const Simulation& plan);

}  // namespace dstrain
