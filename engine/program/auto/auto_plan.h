#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/program/auto/plan_source.h"
#include "engine/program/auto/search_space.h"
#include "engine/program/simulate.h"
#include "engine/program/strategy.h"

/// Which layout of a number of ranks trains a recipe fastest.
namespace dstrain {

struct AutoOptions {
  int ranks = 1;
  int top = 10;  ///< rows
};

/// A choice whose programs were built, checked and simulated. Seconds are means over the ranks of
/// its pipeline; those of the terms add up to the step.
struct AutoRow {
  PlanChoice choice;
  BatchPlan batch;
  int recomputed = 0, blocks = 0;
  double step_s = 0;
  double compute_s = 0;   ///< blocks
  double exchange_s = 0;  ///< collectives inside blocks
  double exposed_s = 0;   ///< waits for gathers, reductions and the norm
  double bubble_s = 0;    ///< waits for other ranks of the pipeline
  double rest_s = 0;      ///< update, and waits for data
  Bytes memory = 0;       ///< of the fullest rank
  Bytes limit = 0;        ///< of a rank; 0: not known
  double flops = 0;       ///< forward and backward of a step on one rank, recomputation not counted

  [[nodiscard]] bool fits() const { return limit == 0 || memory <= limit; }
};

/// Choices that have something in common: "tensor", "ZeRO stage 3".
struct AutoFamily {
  std::string name;
  std::optional<AutoRow> best;  ///< nothing: none can run
  std::string reason;           ///< why not
};

struct AutoPlan {
  int ranks = 1;
  Machine machine;
  std::vector<AutoRow> rows;       ///< by time
  std::vector<AutoRow> defaults;   ///< default layouts (is_default_layout) that are not in `rows`
  std::vector<AutoFamily> families;  ///< all but those of the first row
  int choices = 0;                 ///< of the space
  int simulated = 0;               ///< visit by visit
  int built = 0;                   ///< programs of all ranks of a line, checked and simulated
};

/// Bounds every choice from below, plays them visit by visit in the order of their bounds until a
/// bound exceeds the time of the last row, and builds, checks and simulates the best. `recipe` has
/// the batch and the data, its parallel section is not read. Error{usage} where nothing can run,
/// with the least that memory is short of or what the rules say.
[[nodiscard]] AutoPlan search_plan(const Recipe& recipe, const PlanSource& source,
                                   const Machine& machine, const AutoOptions& options);

}  // namespace dstrain
