#pragma once

#include "engine/bench/bench_results.h"

namespace dstrain::bench {

/// Takes what the plan of a case says of its layout.
void add_layout(CaseResult& result);
/// Takes what a run measured in the `steps` steps behind its warm-up, and in its traced ones.
void add_run(CaseResult& result, const report::RunFigures& run, int steps);

/// Layouts of all cases, figures of the run of median step, and efficiencies. `steps` of each run
/// count.
void add_layouts(BenchResults& results, int steps);

}  // namespace dstrain::bench
