#include "engine/program/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/mesh/shard_groups.h"

namespace dstrain {

const char* place_name(Place place) {
  switch (place) {
    case Place::device:
      return "device";
    case Place::pinned:
      return "pinned";
    case Place::pageable:
      return "pageable";
    case Place::file:
      return "file";
  }
  return "?";
}

/// The axes lie in the order of kAxes; shard is the inner one of the two data axes.
CommExtent Layout::extent(CommAxis axis) const {
  const int below_expert = tensor_degree * sequence_degree;
  const int below_shard = below_expert * expert_degree;
  switch (axis) {
    case CommAxis::shard:
      return {shard_degree, below_shard};
    case CommAxis::data:
      return {replica_degree, shard_degree * below_shard};
    case CommAxis::batch:
      return {data_ranks(), below_shard};
    case CommAxis::tensor:
      return {tensor_degree, 1};
    case CommAxis::sequence:
      return {sequence_degree, tensor_degree};
    case CommAxis::expert:
      return {expert_degree, below_expert};
    case CommAxis::pipeline:
      return {pipeline_degree(), data_ranks() * below_shard};
    case CommAxis::world:
      return {pipeline_degree() * data_ranks() * below_shard, 1};
    case CommAxis::shard_inner:
      return {second_degree, below_shard};
    case CommAxis::shard_outer:
      return {shard_degree / second_degree, second_degree * below_shard};
    case CommAxis::ends:
      return {std::min(pipeline_degree(), 2), (pipeline_degree() - 1) * data_ranks() * below_shard};
  }
  return {};
}

bool Layout::gathered(int group) const {
  const GroupLayout& kind = groups.at(static_cast<std::size_t>(group));
  return (kind.trainable ? kind.states : kind.parameters) == Partition::sharded;
}

bool Layout::gathered_into_slot(int group) const {
  const GroupLayout& kind = groups.at(static_cast<std::size_t>(group));
  return kind.parameters == Partition::sharded || kind.parameter_place != Place::device;
}

bool Layout::reduced_from_slot(int group) const {
  const GroupLayout& kind = groups.at(static_cast<std::size_t>(group));
  return kind.trainable && kind.gradients == Partition::sharded;
}

bool Layout::holds(int coordinate, int group) const {
  return std::ranges::binary_search(groups.at(to_index(group)).stages, coordinate);
}

bool Layout::reduced(int group) const {
  const GroupLayout& kind = groups.at(to_index(group));
  return kind.trainable && (data_ranks() > 1 || kind.stages.size() > 1);
}

bool Layout::offloaded(int group) const {
  const GroupLayout& kind = groups.at(static_cast<std::size_t>(group));
  return kind.parameter_place != Place::device || kind.state_place != Place::device;
}

std::int64_t Layout::own_elements(int group) const {
  const FlatGroup& own = flat.at(static_cast<std::size_t>(group));
  return gathered(group) ? own.shard_size() : own.padded();
}

int Layout::parts(int group) const {
  if (groups.at(static_cast<std::size_t>(group)).update_method == UpdateMethod::device) return 1;
  return static_cast<int>(ceil_div(own_elements(group), chunk));
}

Range Layout::part(int group, int index) const {
  const std::int64_t own = own_elements(group);
  if (groups.at(static_cast<std::size_t>(group)).update_method == UpdateMethod::device)
    return {0, own};
  return {index * chunk, std::min(own, (index + 1) * chunk)};
}

Bytes Layout::gather_bytes(int group) const {
  return flat.at(static_cast<std::size_t>(group)).padded() * widths.compute;
}

Bytes Layout::reduce_bytes(int group) const {
  return flat.at(static_cast<std::size_t>(group)).padded() * widths.reduce_wire;
}

Bytes Layout::update_bytes(int group) const {
  const bool whole = groups.at(static_cast<std::size_t>(group)).matrix_elements > 0;
  return whole && gathered(group)
             ? flat.at(static_cast<std::size_t>(group)).padded() * matrix_rule.direction
             : 0;
}

bool Layout::gathers_codes(int group) const {
  const GroupLayout& kind = groups.at(to_index(group));
  return gather_format && kind.parameters == Partition::sharded && kind.coded_elements > 0;
}

bool Layout::reduces_codes(int group) const { return reduce_format && reduced_from_slot(group); }

CodedGroup Layout::coded(int group, CodeFormat format) const {
  return {.elements = flat.at(to_index(group)).padded(),
          .shards = shard_degree,
          .quantized = groups.at(to_index(group)).coded_elements,
          .format = format};
}

Bytes Layout::gather_scratch(int group) const {
  return gathers_codes(group) ? coded(group, *gather_format).gather_scratch_bytes(widths.compute)
                              : 0;
}

Bytes Layout::reduce_scratch(int group) const {
  return reduces_codes(group) ? coded(group, *reduce_format).reduce_scratch_bytes(second_degree)
                              : 0;
}

std::int64_t Layout::second_elements(int group) const {
  return flat.at(to_index(group)).padded() / second_degree;
}

std::vector<int> Layout::ranks(CommAxis axis, const Mesh& mesh, int rank) const {
  if (axis == CommAxis::ends) {
    const std::vector<int> line = mesh.group(rank, Axis::pipeline);
    return {line.front(), line.back()};
  }
  if (axis != CommAxis::shard_inner && axis != CommAxis::shard_outer)
    return mesh.group(rank, axes_of(axis));
  const ShardGroups cut(shard_degree, second_degree);
  return axis == CommAxis::shard_inner ? cut.inner_ranks(mesh, rank) : cut.outer_ranks(mesh, rank);
}

namespace {

/// Two products with the Gram matrix of the shorter side, and the Gram matrix itself.
Flops newton_schulz_flops(const MatrixShape& shape, int iterations) {
  const auto n = static_cast<Flops>(std::min(shape.rows, shape.columns)),
             m = static_cast<Flops>(std::max(shape.rows, shape.columns));
  return iterations * (4 * n * n * m + 2 * n * n * n);
}

/// A rank orthogonalises the matrices that its shard has a part of.
void add_matrices(const GroupCost& cost, const FlatGroup& flat, const MatrixRule& rule,
                  GroupLayout& group) {
  if (rule.iterations == 0 || !group.trainable || cost.hidden_tensors == 0) return;
  const auto tensors = static_cast<std::size_t>(cost.hidden_tensors);
  Bytes iteration = 0;
  for (const auto& [rows, columns] : cost.matrices) {
    const std::int64_t side = std::min(rows, columns), elements = rows * columns;
    iteration = std::max(iteration, 2 * rule.direction * elements +
                                        std::max(2 * rule.direction * side * side, 2 * elements));
  }
  group.matrix_elements = tensors < flat.num_tensors() ? flat.offset(tensors) : flat.padded();
  const int shards =
      group.states == Partition::sharded ? static_cast<int>(flat.padded() / flat.shard_size()) : 1;
  group.matrix_workspace =
      (shards > 1 ? flat.padded() : group.matrix_elements) * rule.direction + iteration;
  for (int shard = 0; shard < shards; ++shard) {
    const Range own = shards > 1 ? flat.shard(shard) : Range{0, flat.padded()};
    Flops flops = 0;
    std::size_t tensor = 0;
    std::int64_t begin = 0;
    for (const MatrixShape& shape : cost.matrices) {
      const std::int64_t size = shape.rows * shape.columns;
      if (begin == flat.size(tensor)) {
        ++tensor;
        begin = 0;
      }
      const std::int64_t first = flat.offset(tensor) + begin;
      if (!intersect(own, {first, first + size}).empty())
        flops += newton_schulz_flops(shape, rule.iterations);
      begin += size;
    }
    group.matrix_flops = std::max(group.matrix_flops, flops);
  }
}

}  // namespace

Layout zero_layout(int zero_stage, const Mesh& mesh, const ModelCost& cost,
                   const StateWidths& widths, const MatrixRule& matrix_rule) {
  if (zero_stage < 0 || zero_stage > 3) {
    throw Error(ErrorKind::usage, fmt::format("ZeRO stage {}", zero_stage), "use 0, 1, 2 or 3");
  }
  Layout layout;
  layout.widths = widths;
  layout.matrix_rule = matrix_rule;
  // Stage 0 has no use for the shard axis: its ranks are replicas like the others.
  layout.shard_degree = zero_stage == 0 ? 1 : mesh.degree(Axis::shard);
  layout.replica_degree = mesh.degree(kDataAxes) / layout.shard_degree;
  layout.expert_degree = mesh.degree(Axis::expert);
  layout.sequence_degree = mesh.degree(Axis::sequence);
  layout.tensor_degree = mesh.degree(Axis::tensor);

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
    add_matrices(g, layout.flat.back(), matrix_rule, layout.groups.back());
  }
  set_stages(layout, cost,
             even_stages(static_cast<int>(cost.blocks.size()), mesh.degree(Axis::pipeline)));
  return layout;
}

void set_stages(Layout& layout, const ModelCost& cost, Stages stages) {
  layout.stages = std::move(stages);
  for (GroupLayout& group : layout.groups) group.stages.clear();
  for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
    for (const int g : cost.blocks[to_index(b)].groups) {
      std::vector<int>& holders = layout.groups[to_index(g)].stages;
      const int coordinate = layout.stages.rank_of(b);
      const auto place = std::ranges::lower_bound(holders, coordinate);
      if (place == holders.end() || *place != coordinate) holders.insert(place, coordinate);
    }
  }
  for (GroupLayout& group : layout.groups) {
    if (group.stages.size() > 1) group.gradients = Partition::replicated;
  }
}

void set_wires(Layout& layout, const ModelCost& cost, const Wires& wires) {
  if (wires.second_degree < 1 || layout.shard_degree % wires.second_degree != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("a second shard of {} ranks on a shard axis of {}", wires.second_degree,
                            layout.shard_degree),
                "use a divisor of the shard axis");
  }
  if (layout.shard_degree == 1) return;
  layout.gather_format = wires.gather;
  layout.reduce_format = wires.reduce;
  layout.second_degree = wires.second_degree;
  if (!wires.gather && !wires.reduce) return;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto matrices = to_index(cost.groups[g].leading_matrices);
    const FlatGroup& flat = layout.flat[g];
    layout.groups[g].coded_elements =
        matrices < flat.num_tensors() ? flat.offset(matrices) : flat.padded();
  }
}

}  // namespace dstrain
