#pragma once

#include <string>
#include <vector>

#include "engine/program/simulate.h"
#include "engine/program/strategy.h"

namespace dstrain {

/// What `dstrain plan` knows: one training step of a recipe on a machine.
struct PlanReport {
  std::string recipe;  ///< its name
  std::string model;   ///< as the recipe calls it
  int zero_stage = 0;
  Machine machine;
  Simulation step;
  /// A form of ZeRO++ that the recipe asks for.
  struct Form {
    std::string name;
    double without_s = 0;  ///< the step without it
  };
  std::vector<Form> forms{};

  [[nodiscard]] bool fits() const { return step.ledger.total() <= machine.device_memory; }
};
[[nodiscard]] PlanReport make_plan(const std::string& recipe_name, const Recipe& recipe,
                                   const Strategy& strategy, const ModelCost& cost,
                                   const Machine& machine);

/// Tables for a person, ending in a newline.
[[nodiscard]] std::string plan_text(const PlanReport& plan, const Strategy& strategy,
                                    const ModelCost& cost);
/// One JSON object with the same numbers in bytes and seconds; also `plan.json` of a run directory.
[[nodiscard]] std::string plan_json(const PlanReport& plan, const Strategy& strategy,
                                    const ModelCost& cost);

}  // namespace dstrain
