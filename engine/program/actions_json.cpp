#include "engine/program/actions_json.h"

#include <fmt/format.h>

#include "engine/base/index.h"

namespace dstrain {

const char* trace_phase(Phase phase) {
  return phase == Phase::norm || phase == Phase::update ? "optimizer" : phase_name(phase);
}

nlohmann::ordered_json actions_json(const Program& program, const ModelCost& cost,
                                    const Simulation& plan) {
  const std::vector<Phase> phase_by_action = phases(program);
  auto all = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const Lane lane = action.lane;
    Bytes bytes = 0;
    auto collectives = nlohmann::ordered_json::array();
    for (const Comm& comm : action.comm) {
      bytes += comm.bytes;
      collectives.push_back(
          {{"operation", comm_name(comm.op)},
           {"channel", fmt::format("{}-{}", comm_axis_name(comm.axis), lane_name(lane))},
           {"bytes", comm.bytes}});
    }
    all.push_back({{"index", i},
                   {"name", describe(action, cost)},
                   {"kind", action_name(action.kind)},
                   {"lane", lane_name(lane)},
                   {"phase", trace_phase(phase_by_action[i])},
                   {"block", action.block < 0 ? "" : cost.blocks.at(to_index(action.block)).name},
                   {"group", action.group < 0 ? "" : cost.groups.at(to_index(action.group)).name},
                   {"micro_batch", action.micro_batch},
                   {"part", action.part},
                   {"after", action.after},
                   {"after_previous", action.after_previous},
                   {"bytes", bytes},
                   {"flops", action.flops},
                   {"predicted_s", plan.action_end_s[i] - plan.action_start_s[i]},
                   {"collectives", std::move(collectives)}});
  }
  return all;
}

}  // namespace dstrain
