#include "engine/program/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/mesh/shard_groups.h"

namespace dstrain {

namespace {

struct PlaceRow {
  const char* name;
  Access access;
};
/// In the order of Place.
constexpr std::array kPlaces = {
    PlaceRow{"device", Access::direct},
    PlaceRow{"pinned", Access::direct},
    PlaceRow{"pageable", Access::copied},
    PlaceRow{"file", Access::file},
};

/// Distance in ranks between neighbours along `axes`, which lie in the order of kAxes.
int stride_of(const Layout& layout, Axes axes) {
  int stride = 1;
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis) {
    const int degree = layout.degrees[*axis];
    if (axes.contains(*axis) && degree > 1) break;
    stride *= degree;
  }
  return stride;
}

/// Ranks that lie together and have all those that differ on `axes`.
int span_of(const Layout& layout, Axes axes) {
  int stride = 1, span = 1;
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis) {
    stride *= layout.degrees[*axis];
    if (axes.contains(*axis) && layout.degrees[*axis] > 1) span = stride;
  }
  return span;
}

}  // namespace

Access access_of(Place place) { return kPlaces.at(to_index(static_cast<int>(place))).access; }

const char* place_name(Place place) { return kPlaces.at(to_index(static_cast<int>(place))).name; }

int Layout::degree(Axes axes) const { return static_cast<int>(product(degrees, axes)); }

CommExtent Layout::extent(CommAxis axis) const {
  const int ranks = degree(axis.axes()), stride = stride_of(*this, axis.axes());
  switch (axis.part()) {
    case CommAxis::Part::all:
      return {ranks, stride, span_of(*this, axis.axes())};
    case CommAxis::Part::inner:
      return {second_degree, stride, second_degree * stride};
    case CommAxis::Part::outer:
      return {ranks / second_degree, second_degree * stride, ranks * stride};
    case CommAxis::Part::ends:
      return {std::min(ranks, 2), (ranks - 1) * stride, ranks * stride};
  }
  return {};
}

int Layout::shards(int group) const { return degree(groups.at(to_index(group)).cut); }

Axes Layout::holder_axes(int group) const {
  const GroupLayout& kind = groups.at(to_index(group));
  return gathered(group) ? kind.copies : kind.copies | kind.cut;
}

int Layout::holders(int group) const {
  return degree(holder_axes(group)) * static_cast<int>(groups.at(to_index(group)).stages.size());
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

std::int64_t Layout::whole_gradient_elements(int group) const {
  const std::int64_t sums = groups.at(to_index(group)).fp32_sums;
  return flat.at(to_index(group)).padded() + sums * kFloatBytes / widths.gradient;
}

bool Layout::reduced(int group) const {
  const GroupLayout& kind = groups.at(to_index(group));
  return kind.trainable && (degree(kind.cut | kind.copies) > 1 || kind.stages.size() > 1);
}

bool Layout::splits_sum(int group) const {
  const GroupLayout& kind = groups.at(to_index(group));
  const CommExtent copies = extent(kind.copies);
  // Not by where states rest: offload changes no bit, and the norm's depend on who adds what.
  const bool whole_on_each = kind.trainable && kind.stages.size() == 1;
  // Gathers of other groups' parameters would wait behind that of the sum.
  if (std::ranges::any_of(groups, [](const GroupLayout& other) { return !other.cut.empty(); }))
    return false;
  return whole_on_each && copies.ranks > 1 && copies.span <= peer_ranks &&
         widths.reduce_wire == widths.gradient &&
         flat.at(to_index(group)).padded() % copies.ranks == 0;
}

std::int64_t Layout::summed_elements(int group) const {
  return splits_sum(group)
             ? flat.at(to_index(group)).padded() / degree(groups[to_index(group)].copies)
             : own_elements(group);
}

int Layout::summing_ranks(int group) const {
  return splits_sum(group) ? holders(group) / degree(groups[to_index(group)].copies)
                           : holders(group);
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
          .shards = shards(group),
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

Axes Layout::in_mesh(Axes axes) const {
  return degrees.shard == 1 && axes.contains(Axis::data) ? axes | Axis::shard : axes;
}

std::vector<int> Layout::ranks(CommAxis axis, const Mesh& mesh, int rank) const {
  if (axis == CommAxis::ends) {
    const std::vector<int> line = mesh.group(rank, Axis::pipeline);
    return {line.front(), line.back()};
  }
  if (axis.part() == CommAxis::Part::all) return mesh.group(rank, in_mesh(axis.axes()));
  const ShardGroups cut(degrees.shard, second_degree);
  return axis == CommAxis::shard_inner ? cut.inner_ranks(mesh, rank) : cut.outer_ranks(mesh, rank);
}

namespace {

/// Two products with the Gram matrix of the shorter side, and the Gram matrix itself.
Flops newton_schulz_flops(const MatrixShape& shape, int iterations) {
  const auto n = static_cast<Flops>(std::min(shape.rows, shape.columns)),
             m = static_cast<Flops>(std::max(shape.rows, shape.columns));
  return iterations * (4 * n * n * m + 2 * n * n * n);
}

/// Elements of the first so many tensors; of all, with the padding at the end.
std::int64_t leading_elements(const FlatGroup& flat, int tensors) {
  return to_index(tensors) < flat.num_tensors() ? flat.offset(to_index(tensors)) : flat.padded();
}

/// A rank orthogonalises the matrices that its shard has a part of.
void add_matrices(const GroupCost& cost, const FlatGroup& flat, const MatrixRule& rule,
                  GroupLayout& group) {
  if (rule.iterations == 0 || !group.trainable || cost.hidden_tensors == 0) return;
  Bytes iteration = 0;
  for (const auto& [rows, columns] : cost.matrices) {
    const std::int64_t side = std::min(rows, columns), elements = rows * columns;
    iteration = std::max(iteration, 2 * rule.direction * elements +
                                        std::max(2 * rule.direction * side * side, 2 * elements));
  }
  group.matrix_elements = leading_elements(flat, cost.hidden_tensors);
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

namespace {

/// Along which ranks of one replica hold the same elements of such weights.
Axes axes_of_equals(Cut cut) {
  return kAllAxes - (Axes(Axis::pipeline) | Axis::data | axes_of(cut));
}

/// Those of `axes` with more than one rank.
Axes used(const Layout& layout, Axes axes) {
  Axes list;
  for (const Axis axis : kAxes) {
    if (axes.contains(axis) && layout.degree(axis) > 1) list = list | axis;
  }
  return list;
}

}  // namespace

Axes equal_axes(const Layout& layout, Cut cut) {
  return used(layout, Axes(Axis::data) | axes_of_equals(cut));
}

Layout zero_layout(int zero_stage, const Mesh& mesh, const ModelCost& cost,
                   const StateWidths& widths, const MatrixRule& matrix_rule) {
  if (zero_stage < 0 || zero_stage > 3) {
    throw Error(ErrorKind::usage, fmt::format("ZeRO stage {}", zero_stage), "use 0, 1, 2 or 3");
  }
  Layout layout;
  layout.widths = widths;
  layout.matrix_rule = matrix_rule;
  for (const Axis axis : kAxes) layout.degrees[axis] = mesh.degree(axis);
  // Stage 0 has no use for the shard axis: its ranks are replicas like the others.
  if (zero_stage == 0) layout.degrees.data *= std::exchange(layout.degrees.shard, 1);

  for (const GroupCost& g : cost.groups) {
    GroupLayout group = {.trainable = g.trainable};
    const Axes cut = used(layout, axes_of_equals(g.cut));
    group.copies = used(layout, Axis::data);
    if (zero_stage > 0) {
      group.cut = cut;
    } else {
      group.copies = group.copies | cut;
    }
    const auto from_stage = [&](int stage) {
      return !group.cut.empty() && zero_stage >= stage ? Partition::sharded : Partition::replicated;
    };
    group.parameters = from_stage(3);
    group.gradients = from_stage(2);
    group.states = from_stage(1);
    layout.groups.push_back(group);
    layout.flat.emplace_back(g.tensor_sizes, layout.degree(group.cut));
    add_matrices(g, layout.flat.back(), matrix_rule, layout.groups.back());
    if (widths.gradient < kFloatBytes) {
      const FlatGroup& flat = layout.flat.back();
      layout.groups.back().fp32_sums = flat.padded() - leading_elements(flat, g.leading_matrices);
    }
  }
  set_stages(layout, cost,
             even_stages(static_cast<int>(cost.blocks.size()), mesh.degree(Axis::pipeline)));
  return layout;
}

void set_stages(Layout& layout, const ModelCost& cost, Stages stages) {
  layout.stages = std::move(stages);
  layout.degrees.pipeline = layout.stages.ranks();
  for (GroupLayout& group : layout.groups) group.stages.clear();
  for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
    for (const int g : cost.blocks[to_index(b)].groups) {
      std::vector<int>& holders = layout.groups[to_index(g)].stages;
      const int coordinate = layout.stages.rank_of(b);
      const auto place = std::ranges::lower_bound(holders, coordinate);
      if (place == holders.end() || *place != coordinate) holders.insert(place, coordinate);
    }
  }
  std::vector<int> last_chunk(layout.groups.size(), -1);
  for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
    for (const int g : cost.blocks[to_index(b)].groups) {
      int& last = last_chunk[to_index(g)];
      const int chunk = layout.stages.chunk_of(b);
      // Chunks add to it in the order of their schedule, not micro-batch by micro-batch.
      if (last >= 0 && last != chunk) layout.groups[to_index(g)].gradients = Partition::replicated;
      last = chunk;
    }
  }
}

void set_wires(Layout& layout, const ModelCost& cost, const Wires& wires) {
  if (wires.second_degree < 1 || layout.degrees.shard % wires.second_degree != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("a second shard of {} ranks on a shard axis of {}", wires.second_degree,
                            layout.degrees.shard),
                "use a divisor of the shard axis");
  }
  const bool wanted = wires.gather || wires.reduce || wires.second_degree > 1;
  const Axes others = kAllAxes - Axes{Axis::pipeline, Axis::data, Axis::shard};
  if (wanted && layout.degree(others) > 1) {
    std::vector<std::string> given;
    for (const Axis axis : kAxes) {
      if (others.contains(axis))
        given.push_back(fmt::format("{}: {}", axis_name(axis), layout.degrees[axis]));
    }
    throw Error(ErrorKind::usage,
                fmt::format("codes and second shards (precision.gather, precision.reduce, "
                            "parallel.zero.second_shard) with parallel.{}",
                            fmt::join(given, ", ")),
                "they are made for data ranks alone: leave these keys out, or use 1 for the axes");
  }
  if (layout.degrees.shard == 1) return;
  layout.gather_format = wires.gather;
  layout.reduce_format = wires.reduce;
  layout.second_degree = wires.second_degree;
  if (!wires.gather && !wires.reduce) return;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    layout.groups[g].coded_elements =
        leading_elements(layout.flat[g], cost.groups[g].leading_matrices);
  }
}

}  // namespace dstrain
