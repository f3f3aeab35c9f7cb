#include "engine/program/phases.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/base/index.h"

namespace dstrain {

const char* phase_name(Phase phase) {
  constexpr std::array<const char*, kNumPhases> kNames = {"forward", "backward", "norm", "update"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::vector<Phase> phases(const Program& program) {
  const std::vector<Action>& actions = program.actions;
  std::vector<std::optional<Phase>> found(actions.size());
  Phase present = Phase::forward;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!computes(actions[i].lane)) continue;
    present = kind_row(actions[i].kind).phase.value_or(present);
    found[i] = present;
    for (const int other : actions[i].after) {
      auto& served = found[to_index(other)];
      const bool elsewhere = !computes(actions[to_index(other)].lane);
      if (elsewhere && !served) served = present;
    }
  }
  std::vector<Phase> all(actions.size());
  present = Phase::forward;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Lane lane = actions[i].lane;
    if (lane == Lane::send_up || lane == Lane::receive_up)
      all[i] = Phase::backward;
    else if (outlasts_step(lane))
      all[i] = Phase::update;
    else
      all[i] = kind_row(actions[i].kind).serves.value_or(found[i].value_or(present));
    if (computes(actions[i].lane)) present = all[i];
  }
  return all;
}

}  // namespace dstrain
