#pragma once

#include <string>
#include <vector>

namespace dstrain {

struct PlanOptions {
  std::string recipe;  ///< file
  int ranks = 1;
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  bool json = false;
  std::string machine;  ///< empty: cpu for a recipe whose backend is gloo, else h200
};

/// Prints the plan of one training step; needs neither GPU nor data. Returns the exit code.
int plan(const PlanOptions& options);

}  // namespace dstrain
