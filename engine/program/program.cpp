#include "engine/program/program.h"

#include <fmt/format.h>

namespace dstrain {

const char* action_name(ActionKind kind) {
  using enum ActionKind;
  switch (kind) {
    case load:
      return "load";
    case gather:
      return "gather";
    case release:
      return "release";
    case forward:
      return "forward";
    case recompute:
      return "recompute";
    case clear:
      return "clear";
    case backward:
      return "backward";
    case reduce:
      return "reduce";
    case norm:
      return "norm";
    case update:
      return "update";
  }
  return "?";
}

const char* lane_name(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::gather:
      return "gather";
    case Lane::reduce:
      return "reduce";
    case Lane::copy_in:
      return "copy_in";
  }
  return "?";
}

Lane lane_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::load:
      return Lane::copy_in;
    case ActionKind::gather:
      return Lane::gather;
    case ActionKind::reduce:
      return Lane::reduce;
    default:
      return Lane::compute;
  }
}

Flops useful_flops(const Program& program) {
  Flops flops = 0;
  for (const Action& action : program.actions) {
    if (action.kind == ActionKind::forward || action.kind == ActionKind::backward)
      flops += action.flops;
  }
  return flops;
}

std::string describe(const Action& action, const ModelCost& cost) {
  const auto name_in = [](const auto& list, int index) {
    const auto i = static_cast<std::size_t>(index);
    return index >= 0 && i < list.size() ? list[i].name : fmt::format("{}", index);
  };
  std::string text = action_name(action.kind);
  if (action.block >= 0) {
    text += fmt::format("({})", name_in(cost.blocks, action.block));
  } else if (action.group >= 0) {
    text += fmt::format("({})", name_in(cost.groups, action.group));
  }
  if (action.micro_batch >= 0) text += fmt::format(", micro-batch {}", action.micro_batch);
  return text;
}

}  // namespace dstrain
