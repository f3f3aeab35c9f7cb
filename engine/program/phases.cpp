#include "engine/program/phases.h"

#include <algorithm>
#include <array>

#include "engine/base/index.h"

namespace dstrain {

const char* phase_name(Phase phase) {
  constexpr std::array<const char*, kNumPhases> kNames = {"forward", "backward", "norm", "update"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::optional<Phase> phase_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return Phase::forward;
    case ActionKind::recompute:
    case ActionKind::clear:
    case ActionKind::backward:
    case ActionKind::backward_input:
    case ActionKind::backward_weight:
      return Phase::backward;
    case ActionKind::norm:
      return Phase::norm;
    case ActionKind::update:
      return Phase::update;
    default:
      return {};
  }
}

std::vector<Phase> phases(const Program& program) {
  const std::vector<Action>& actions = program.actions;
  std::vector<std::optional<Phase>> found(actions.size());
  Phase present = Phase::forward;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!computes(actions[i].lane)) continue;
    present = phase_of(actions[i].kind).value_or(present);
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
    const ActionKind kind = actions[i].kind;
    if (kind == ActionKind::reduce || kind == ActionKind::gather_sum ||
        kind == ActionKind::send_up || kind == ActionKind::receive_up) {
      all[i] = Phase::backward;
    } else if (kind == ActionKind::fetch_states || kind == ActionKind::evict_states ||
               kind == ActionKind::update) {
      all[i] = Phase::update;
    } else {
      all[i] = found[i].value_or(present);
    }
    if (computes(actions[i].lane)) present = all[i];
  }
  return all;
}

}  // namespace dstrain
