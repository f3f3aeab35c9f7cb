#pragma once

#include <string>

#include "engine/program/auto/cost_tables.h"

namespace dstrain {

/// No run of the choice is shorter or smaller, whatever its schedule: work of the average rank and
/// of the longest block, the forwards before the last rank's first, and gathers and reductions
/// where they take longer than all of it, on a CPU in any case; states, and the activations of one
/// block.
struct Bound {
  double step_s = 0;
  Bytes memory = 0;
};
[[nodiscard]] Bound lower_bound(const PlanChoice& choice, const BlockTable& blocks,
                                const LayoutTable& layout, int micro_batches,
                                const Machine& machine);

/// A step played visit by visit: chunks of blocks on the ranks of a pipeline, then what of gathers
/// and reductions is left over, and the update. Where memory is short, blocks run forward again.
struct Estimate {
  double step_s = 0;
  Bytes memory = 0;  ///< of the fullest rank, as far as recomputation brings it down
  Bytes limit = 0;   ///< 0: not known
  ScheduleName schedule = ScheduleName::automatic;
  int chunks = 0;  ///< of each pipeline rank

  [[nodiscard]] bool fits() const { return limit == 0 || memory <= limit; }
};
/// `recipe` is that of the choice. Error{usage} where the model cannot be cut so.
[[nodiscard]] Estimate estimate_step(const PlanChoice& choice, const Recipe& recipe,
                                     const ModelCost& cost, const LayoutTable& table,
                                     int micro_batches, const Machine& machine);

}  // namespace dstrain
