#pragma once

#include <optional>

#include "cmd/machine_options.h"
#include "engine/program/plan_report.h"
#include "engine/recipe/load.h"

namespace dstrain {

/// As asked for; else what was measured for the device that this machine has, else the built-in
/// one. As `launch` does it, all `ranks` on the CPU are on one host unless the options say how many
/// are, and share the cores of this machine where no other is named.
[[nodiscard]] Machine plan_machine(const MachineOptions& options, bool on_cpu, int ranks);

/// A recipe's step with all that its plan goes by.
struct RecipePlan {
  ModelCost cost;
  Strategy strategy;
  PlanReport report;
};
/// The plan of one phase of the recipe. Error{usage} begins with the place of the key.
[[nodiscard]] RecipePlan plan_recipe(const LoadedRecipe& loaded, int ranks, const Machine& machine,
                                     int phase = 0);

/// Error{usage} where the machine has GPUs that do not take the sizes of the recipe's model.
void require_sizes(const LoadedRecipe& loaded, const Machine& machine);

/// Error{usage} or Error{data} where a rank of such a job would end with it before its first step:
/// a config.json that asks for what dstrain does not do, axes that do not divide the model, or
/// sizes that GPUs do not take: a warning where neither the recipe nor `gpus`, what the ranks have,
/// says that they have some. Nothing is read of the data.
void require_fit(LoadedRecipe loaded, int ranks, const std::optional<Machine>& gpus = {});

}  // namespace dstrain
