#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/program/auto/auto_row.h"
#include "engine/program/auto/plan_source.h"

/// Which layout of a number of ranks trains a recipe fastest.
namespace dstrain {

struct AutoOptions {
  int ranks = 1;
  int top = 10;  ///< rows
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
  /// By time; of those within 1 % of the shortest, the ones with the fewest axes come first.
  std::vector<AutoRow> rows;
  std::vector<AutoRow> defaults;     ///< default layouts (is_default_layout) that are not in `rows`
  std::vector<AutoFamily> families;  ///< all but those of the first row
  int choices = 0;                   ///< of the space
  int simulated = 0;                 ///< visit by visit
  int built = 0;                     ///< programs of all ranks of a line, checked and simulated
};

/// Bounds every choice from below, plays them visit by visit in the order of their bounds until a
/// bound exceeds the time of the last row, and builds, checks and simulates the best. `recipe` has
/// the batch and the data, its parallel section is not read. Error{usage} where nothing can run,
/// with the least that memory is short of or what the rules say.
[[nodiscard]] AutoPlan search_plan(const Recipe& recipe, const PlanSource& source,
                                   const Machine& machine, const AutoOptions& options);

}  // namespace dstrain
