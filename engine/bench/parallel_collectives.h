#pragma once

#include <vector>

#include "engine/bench/bench_results.h"

namespace dstrain::bench {

/// Those that the JSON of a plan lists, of the rank that holds most.
[[nodiscard]] std::vector<CollectiveFigures> planned_collectives(const nlohmann::json& plan);
/// Adds calls and bytes of a step that the communicators of `rank` counted: the median over the
/// lines of its timings.
void add_counted(std::vector<CollectiveFigures>& list, const report::RunData& run, int rank);
/// Adds the rates of collectives that the traces of all their ranks show.
void add_rates(std::vector<CollectiveFigures>& list, const trace::Collectives& traced);

}  // namespace dstrain::bench
