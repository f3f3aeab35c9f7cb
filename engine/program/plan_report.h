#pragma once

#include <string>
#include <vector>

#include "engine/program/simulate.h"
#include "engine/program/strategy.h"

namespace dstrain {

/// What `dstrain plan` knows: one training step of a recipe on a machine.
struct PlanReport {
  std::string recipe;                            ///< its name
  std::string model;                             ///< as the recipe calls it
  ComputeType compute = ComputeType::automatic;  ///< automatic: not yet chosen
  StateType states = StateType::fp32;
  int zero_stage = 0;
  Machine machine;
  Simulation step;  ///< of the coordinate of a pipeline that holds most
  /// A form of ZeRO++ that the recipe asks for.
  struct Form {
    std::string name;
    double without_s = 0;  ///< the step without it
  };
  std::vector<Form> forms{};
  std::string wires{};  ///< wires_text
  /// A coordinate of a pipeline; none where there is one.
  struct Stage {
    std::vector<int> blocks{};  ///< of each chunk
    Bytes memory = 0;
    Bytes allocated = 0;  ///< of it, by dstrain
    double compute_s = 0;
    double bubble_s = 0;
  };
  std::vector<Stage> stages{};

  [[nodiscard]] bool fits() const { return step.ledger.total() <= machine.device_memory; }
};
[[nodiscard]] PlanReport make_plan(const std::string& recipe_name, const Recipe& recipe,
                                   const Strategy& strategy, const ModelCost& cost,
                                   const Machine& machine);

/// Adds what a rank with this coordinate of the pipeline holds on the host beside what it offloads:
/// `host_base` and `host_checkpoint`.
void add_host_memory(Ledger& ledger, const Recipe& recipe, const Layout& layout,
                     const Machine& machine, int coordinate);
/// Parameters of the whole model: a rank has a part of what is cut.
struct ParameterCount {
  std::int64_t all = 0, trained = 0;
};
[[nodiscard]] ParameterCount count_parameters(const ModelCost& cost, const Layout& layout);
/// ", 59.9M of them trained (1.9 %)"; empty where all are.
[[nodiscard]] std::string trained_part(const ParameterCount& count);
/// On the host, of one rank; with what it allocates where device and host are one memory.
[[nodiscard]] Bytes planned_host_bytes(const Ledger& ledger, const Machine& machine);

/// Tables for a person, ending in a newline.
[[nodiscard]] std::string plan_text(const PlanReport& plan, const Strategy& strategy,
                                    const ModelCost& cost);
/// One JSON object with the same numbers in bytes and seconds; also `plan.json` of a run directory.
[[nodiscard]] std::string plan_json(const PlanReport& plan, const Strategy& strategy,
                                    const ModelCost& cost);

}  // namespace dstrain
