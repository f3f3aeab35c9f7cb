#pragma once

#include "engine/program/layout.h"
#include "engine/program/program.h"
#include "engine/program/simulate.h"
#include "engine/program/stage_search.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Seconds and bytes of each block, and the seconds of a transfer; without limits. `options` as in
/// plan_stages.
[[nodiscard]] StageCosts stage_costs(const Layout& layout, const ModelCost& cost,
                                     const ProgramOptions& options, const Machine& machine);

/// How a pipeline is cut and run.
struct StagePlan {
  ScheduleName schedule = ScheduleName::one_f_one_b;
  CutSchedule cut;
};

/// What `parallel.stages` asks for, or the schedule that ends first by the machine's rates and fits
/// into its memory: 1F1B, interleaved, and zero bubble with one chunk per rank, in a V and in a
/// loop. `options` has the micro-batches, and the recomputed blocks as far as they are known.
/// Error{usage} where the model has fewer blocks than there are chunks, where
/// `parallel.stages.layers` has another number of layers than the model, and where a schedule wants
/// more micro-batches. `moves`: as in search_cut.
[[nodiscard]] StagePlan plan_stages(const Recipe& recipe, const Layout& layout,
                                    const ModelCost& cost, const ProgramOptions& options,
                                    const Machine& machine, int moves = kMaxMoves);

}  // namespace dstrain
