#include "engine/program/layout.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain {

const char* comm_axis_name(CommAxis axis) {
  switch (axis) {
    case CommAxis::shard:
      return "shard";
    case CommAxis::data:
      return "data";
    case CommAxis::batch:
      return "batch";
  }
  return "?";
}

/// The shard axis is the inner one of the two data axes.
CommExtent Layout::extent(CommAxis axis) const {
  switch (axis) {
    case CommAxis::shard:
      return {shard_degree, 1};
    case CommAxis::data:
      return {replica_degree, shard_degree};
    case CommAxis::batch:
      return {data_ranks(), 1};
  }
  return {};
}

bool Layout::gathered(int group) const {
  const GroupLayout& kind = groups.at(static_cast<std::size_t>(group));
  return (kind.trainable ? kind.states : kind.parameters) == Partition::sharded;
}

bool Layout::gathered_into_slot(int group) const {
  return groups.at(static_cast<std::size_t>(group)).parameters == Partition::sharded;
}

bool Layout::reduced_from_slot(int group) const {
  const GroupLayout& kind = groups.at(static_cast<std::size_t>(group));
  return kind.trainable && kind.gradients == Partition::sharded;
}

Bytes Layout::gather_bytes(int group) const {
  return flat.at(static_cast<std::size_t>(group)).padded() * widths.compute;
}

Bytes Layout::reduce_bytes(int group) const {
  return flat.at(static_cast<std::size_t>(group)).padded() * widths.reduce_wire;
}

Layout zero_layout(int zero_stage, const Mesh& mesh, const ModelCost& cost,
                   const StateWidths& widths) {
  if (zero_stage < 0 || zero_stage > 3) {
    throw Error(ErrorKind::usage, fmt::format("ZeRO stage {}", zero_stage), "use 0, 1, 2 or 3");
  }
  Layout layout;
  layout.widths = widths;
  // Stage 0 has no use for the shard axis: its ranks are replicas like the others.
  layout.shard_degree = zero_stage == 0 ? 1 : mesh.degree(Axis::shard);
  layout.replica_degree = mesh.batch_degree() / layout.shard_degree;

  const auto from_stage = [&](int stage) {
    const bool sharded = layout.shard_degree > 1 && zero_stage >= stage;
    return sharded ? Partition::sharded : Partition::replicated;
  };
  const GroupLayout group = {
      .parameters = from_stage(3), .gradients = from_stage(2), .states = from_stage(1)};
  for (const GroupCost& g : cost.groups) {
    layout.groups.push_back(group);
    layout.groups.back().trainable = g.trainable;
    layout.flat.emplace_back(g.tensor_sizes, layout.shard_degree);
  }
  return layout;
}

}  // namespace dstrain
