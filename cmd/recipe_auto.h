#pragma once

#include <string>
#include <vector>

#include "cmd/recipe_plan.h"
#include "engine/program/auto/auto_plan.h"
#include "engine/program/auto/auto_report.h"

namespace dstrain {

/// The search of a recipe file's layouts, and what its report is called.
struct AutoSearch {
  AutoPlan plan;
  AutoTitle title;
};
/// `overrides`: "path.to.key=value", as --set.
[[nodiscard]] AutoSearch search_recipe(const std::string& recipe,
                                       const std::vector<std::string>& overrides,
                                       const MachineOptions& machine, const AutoOptions& options);

}  // namespace dstrain
