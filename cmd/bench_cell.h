#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/bench/bench_plan.h"

namespace dstrain {

/// What is known of a run of a bench before it starts.
struct CellPlan {
  nlohmann::json plan = {};  ///< as `dstrain plan --json`; null where there is none
  std::string refusal = {};  ///< why it cannot run on this machine; empty: it can
};

/// The plan for this machine: of its GPUs, of the ones planned for where it has none, or of its CPU
/// under gloo.
[[nodiscard]] CellPlan plan_cell(const bench::BenchPlan& plan, const bench::Turn& turn);

}  // namespace dstrain
