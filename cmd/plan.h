#pragma once

#include <string>
#include <vector>

namespace dstrain {

struct PlanOptions {
  std::vector<std::string> recipes;  ///< files
  int ranks = 1;
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  bool json = false;
  std::string machine;  ///< empty: plan_machine's choice
  bool search = false;  ///< for the fastest layout; the others are of the search
  int per_node = 0;     ///< ranks; 0: the machine's
  int top = 10;         ///< rows
  std::string write;    ///< file for the first row as sections of a recipe; empty: none
};

/// Prints the plan of one training step of each recipe; needs neither GPU nor data. Returns the exit code.
int plan(const PlanOptions& options);

}  // namespace dstrain
