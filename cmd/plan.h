#pragma once

#include <string>
#include <vector>

#include "cmd/recipe_plan.h"

namespace dstrain {

struct PlanOptions {
  std::vector<std::string> recipes;  ///< files
  int ranks = 1;
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  bool json = false;
  bool program = false;  ///< the actions of a step in place of tables
  MachineOptions machine;
  bool longest = false;             ///< samples that fit, instead of the recipe's own plan
  std::vector<double> memory_gb{};  ///< of devices for that; empty: the machine's
  bool search = false;  ///< for the fastest layout; the others are of the search
  int top = 10;         ///< rows
  std::string write;    ///< file for the first row as sections of a recipe; empty: none
};

/// Prints the plan of one training step of each recipe; needs neither GPU nor data. Returns the
/// exit code.
int plan(const PlanOptions& options);

}  // namespace dstrain
