#include "engine/program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "engine/base/index.h"

namespace dstrain {

std::vector<int> Program::buffers_of(BufferRole role) const {
  std::vector<int> ids;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].role == role) ids.push_back(static_cast<int>(i));
  }
  return ids;
}

int Program::find(const std::vector<int>& ids, BufferRole role) const {
  const auto found = std::ranges::find_if(
      ids, [&](int id) { return buffers.at(static_cast<std::size_t>(id)).role == role; });
  return found == ids.end() ? -1 : *found;
}

bool streams_states(const Program& program) {
  return std::ranges::find(program.actions, Lane::fetch, &Action::lane) != program.actions.end();
}

bool runs_two_at_once(const Program& program) {
  return std::ranges::find(program.actions, Lane::compute_beside, &Action::lane) !=
         program.actions.end();
}

int state_slot_width(const GroupLayout& group, const StateWidths& widths) {
  return (group.state_place == Place::device ? 0 : widths.master + widths.moments) +
         (group.parameter_place == Place::device ? 0 : widths.compute);
}

int gradient_slot_width(const GroupLayout& group, const StateWidths& widths) {
  return widths.gradient + (group.parameter_place == Place::device ? widths.compute : 0);
}

Flops block_flops(work::Pass pass, int block, const Layout& layout, const ModelCost& cost) {
  const BlockCost& own = cost.blocks.at(to_index(block));
  if (pass == work::Pass::weight) return own.weight_flops;
  if (pass == work::Pass::again) return own.forward_flops - own.again_flops;
  if (!runs_backward(pass)) return own.forward_flops;
  std::int64_t all = 0, trained = 0;
  for (const int group : own.groups) {
    const std::int64_t elements = layout.flat[to_index(group)].padded();
    all += elements;
    if (layout.groups[to_index(group)].trainable) trained += elements;
  }
  const Flops flops = (2 * trained < all ? 1 : 2) * own.forward_flops + own.again_flops;
  return pass == work::Pass::backward ? flops : flops - own.weight_flops;
}

Bytes saved_bytes(const BlockCost& block, const Program& program) {
  return block.saved_bytes + (program.keeps_hidden ? block.hidden_bytes : 0);
}

Bytes workspace_of(work::Pass pass, const BlockCost& block, bool keeps, bool keeps_hidden) {
  // Without a backward, what autograd would save is freed as the forward goes on.
  if (pass == work::Pass::forward) return block.forward_workspace + (keeps ? 0 : block.saved_bytes);
  // The gradient of the block's output is already there.
  if (pass == work::Pass::again) return block.forward_workspace + block.boundary_bytes();
  if (runs_backward(pass)) {
    return block.backward_workspace + (keeps_hidden ? block.hidden_workspace : 0) +
           block.boundary_bytes();
  }
  return 0;
}

Bytes block_state_bytes(int block, const Layout& layout, const ModelCost& cost) {
  return cost.blocks.at(to_index(block)).state_bytes * (layout.widths.average > 0 ? 2 : 1);
}

std::vector<Buffer> moments_of(int group, const Layout& layout) {
  const auto g = static_cast<std::size_t>(group);
  const FlatGroup& flat = layout.flat[g];
  const StateWidths& widths = layout.widths;
  const std::int64_t own = layout.gathered(group) ? flat.shard_size() : flat.padded();
  const std::int64_t matrices = layout.groups[g].matrix_elements;
  Buffer buffer{.role = BufferRole::moments, .owner = group, .place = layout.groups[g].state_place};
  if (matrices > 0) {
    // Matrices stand in front, so the last shard holds the fewest of them.
    const std::int64_t others = std::min(own, flat.padded() - matrices);
    buffer.elements = others * widths.moments + (own - others) * layout.matrix_rule.moments;
    return {buffer};
  }
  buffer.elements = own;
  buffer.width = widths.moment;
  std::vector<Buffer> moments;
  for (buffer.moment = 0; (buffer.moment + 1) * widths.moment <= widths.moments; ++buffer.moment)
    moments.push_back(buffer);
  return moments;
}

namespace {

/// Whether a run of a block exchanges what is due in `when`.
bool runs_in(ExchangePass when, work::Pass pass, ProgramKind program) {
  if (when == ExchangePass::backward) return runs_backward(pass);
  if (pass != work::Pass::forward && pass != work::Pass::again) return false;
  const bool training = program == ProgramKind::training;
  return when == ExchangePass::forward || training == (when == ExchangePass::train);
}

}  // namespace

std::vector<Comm> block_collectives(work::Pass pass, int block, ProgramKind program,
                                    const Layout& layout, const ModelCost& cost) {
  std::vector<Comm> list;
  for (const Exchange& e : cost.blocks.at(to_index(block)).exchanges) {
    if (runs_in(e.pass, pass, program) && layout.extent(e.axis).ranks > 1)
      list.push_back({e.op, e.axis, e.width, e.bytes});
  }
  return list;
}

std::vector<Comm> update_collectives(int group, const Layout& layout) {
  const Bytes bytes = layout.update_bytes(group);
  const CommAxis cut = layout.groups.at(to_index(group)).cut;
  if (bytes == 0 || layout.extent(cut).ranks == 1) return {};
  return {{CommOp::all_gather, cut, layout.matrix_rule.direction, bytes}};
}

std::vector<CommChannel> channels(const Program& program) {
  std::set<CommChannel> used;
  for (const Action& action : program.actions) {
    for (const Comm& comm : action.comm) used.insert({comm.axis, action.lane});
  }
  return {used.begin(), used.end()};
}

namespace {

/// Both ends of a link are one group.
ChannelGroup link_group(const CommChannel& channel, const Layout& layout, const Mesh& mesh,
                        int rank) {
  const std::vector<int> line = layout.ranks(Axis::pipeline, mesh, rank);
  const int own = mesh.coordinate(rank, Axis::pipeline), count = static_cast<int>(line.size());
  const bool sends = channel.lane == Lane::send_down || channel.lane == Lane::send_up;
  const bool down = channel.lane == Lane::send_down || channel.lane == Lane::receive_down;
  const int other = line[to_index((own + (sends == down ? 1 : count - 1)) % count)];
  ChannelGroup group{.channel = channel, .name = {}, .ranks = {rank, other}};
  if (!sends) std::swap(group.ranks[0], group.ranks[1]);
  group.name =
      fmt::format("pipeline-{}-{}-{}", down ? "down" : "up", group.ranks[0], group.ranks[1]);
  return group;
}

}  // namespace

std::vector<ChannelGroup> channel_groups(const std::vector<CommChannel>& channels,
                                         const Layout& layout, const Mesh& mesh, int rank) {
  std::vector<ChannelGroup> groups;
  for (const CommChannel& channel : channels) {
    if (channel.axis == Axis::pipeline) {
      groups.push_back(link_group(channel, layout, mesh, rank));
      continue;
    }
    const std::vector<int> ranks = layout.ranks(channel.axis, mesh, rank);
    groups.push_back({channel,
                      fmt::format("{}-{}-{}", comm_axis_name(channel.axis), lane_name(channel.lane),
                                  ranks.front()),
                      ranks});
  }
  // A rank that waits for the others of a group has opened all that stand before it.
  std::ranges::sort(groups, {}, [](const ChannelGroup& group) {
    const bool up = group.channel.lane == Lane::send_up || group.channel.lane == Lane::receive_up;
    const bool link = group.channel.axis == Axis::pipeline;
    const int place = link ? int{up} : static_cast<int>(group.channel.lane);
    return std::tuple(group.channel.axis, place, group.ranks);
  });
  return groups;
}

Flops useful_flops(const std::vector<Program>& line) {
  Flops flops = 0;
  for (const Program& program : line) {
    for (const Action& action : program.actions) {
      if (runs_block(action.kind)) flops += action.flops - action.again_flops;
    }
  }
  return flops / static_cast<double>(line.size());
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
  if (action.part >= 0) text += fmt::format(", part {}", action.part);
  if (action.micro_batch >= 0) text += fmt::format(", micro-batch {}", action.micro_batch);
  return text;
}

}  // namespace dstrain
