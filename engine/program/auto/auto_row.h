#pragma once

#include "engine/program/auto/search_space.h"
#include "engine/program/simulate.h"
#include "engine/program/strategy.h"

namespace dstrain {

/// A choice whose programs were built, checked and simulated. Seconds are means over the ranks of
/// its pipeline; the terms add up to the step.
struct AutoRow {
  PlanChoice choice;
  BatchPlan batch;
  int recomputed = 0, blocks = 0;
  double step_s = 0;
  double compute_s = 0;   ///< blocks
  double exchange_s = 0;  ///< collectives inside blocks; of two micro-batches at once, all waits
  double exposed_s = 0;   ///< waits for gathers and reductions, and the norm's sum
  double bubble_s = 0;    ///< waits for other ranks of the pipeline
  double rest_s = 0;      ///< update, and waits for data
  Bytes memory = 0;       ///< of the fullest rank
  Bytes limit = 0;        ///< of a rank; 0: not known
  double flops = 0;       ///< forward and backward of a step on one rank, recomputation not counted

  [[nodiscard]] bool fits() const { return limit == 0 || memory <= limit; }
};

/// `strategy` is that of the choice's `recipe`.
[[nodiscard]] AutoRow simulated_row(const PlanChoice& choice, const Recipe& recipe,
                                    const ModelCost& cost, const Strategy& strategy,
                                    const Machine& machine);

}  // namespace dstrain
