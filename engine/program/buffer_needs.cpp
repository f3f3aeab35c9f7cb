#include "engine/program/buffer_needs.h"

#include <algorithm>

#include "engine/base/index.h"

namespace dstrain {

BufferNeeds::BufferNeeds(const Program& program, int run_length, const Layout& layout,
                         const ModelCost& cost)
    : program_(program),
      kind_(program.kind),
      layout_(layout),
      cost_(cost),
      own_(layout, cost, program.coordinate),
      recomputed_(to_index(program.micro_batches) * cost.blocks.size()),
      evicted_(recomputed_.size()),
      backward_(cost.blocks.size()),
      turns_(to_index(run_length)) {
  std::vector<int> gathers(cost.groups.size());
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const Action& a = program.actions[i];
    if (a.kind == ActionKind::gather) turns_[i].index = gathers[to_index(a.group)]++;
  }
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const Action& a = program.actions[i];
    if (a.kind == ActionKind::gather) turns_[i].count = gathers[to_index(a.group)];
  }
  for (const Action& a : program.actions) {
    if (a.kind == ActionKind::evict_input)
      evicted_[to_index(a.micro_batch) * cost.blocks.size() + to_index(a.block)] = true;
    if (runs_backward(a.kind)) backward_[to_index(a.block)] = true;
    if (a.kind == ActionKind::recompute)
      recomputed_[to_index(a.micro_batch) * cost.blocks.size() + to_index(a.block)] = true;
  }
  const auto first_backward = std::ranges::find(backward_, true);
  if (first_backward != backward_.end()) {
    last_reader_ = static_cast<int>(first_backward - backward_.begin());
  } else {
    for (int b = 0; b < static_cast<int>(cost.blocks.size()); ++b) {
      if (own_.local(b)) last_reader_ = b;
    }
  }
}

/// What forward, recompute and backward read, write and free.
void BufferNeeds::block_needs(const Action& a, Needs& needs) const {
  using enum BufferRole;
  const std::size_t b = to_index(a.block);
  const BlockCost& block = cost_.blocks[b];
  const int m = a.micro_batch;
  const auto again = [&](std::size_t k) {
    return recomputed_[to_index(m) * cost_.blocks.size() + k];
  };
  const Need output_of_block = {output, a.block, -1, m, block.boundary_bytes()};
  const Need saved_of_block = {saved, a.block, -1, m, saved_bytes(block, program_)};
  for (const int g : block.groups) {
    const std::int64_t elements = layout_.flat[to_index(g)].padded();
    if (layout_.gathered_into_slot(g)) {
      needs.reads.push_back({gathered, -1, g, -1, elements});
    } else {
      needs.reads.push_back({parameters, g, -1, -1, elements});
    }
  }
  needs.reads.push_back({batch, -1, -1, m, cost_.batch_bytes});
  Need input;
  if (b > 0) {
    const Bytes bytes = cost_.blocks[b - 1].boundary_bytes();
    const bool fetched =
        a.kind != ActionKind::forward && evicted_[to_index(m) * cost_.blocks.size() + b - 1];
    input = fetched ? Need{fetched_input, -1, a.block - 1, m, bytes}
                    : Need{output, a.block - 1, -1, m, bytes};
    needs.reads.push_back(input);
  }
  if (block.state_bytes > 0 && !runs_backward(a.kind)) {
    const bool changes = training() && a.kind == ActionKind::forward;
    (changes ? needs.writes : needs.reads).push_back({block_state, a.block});
  }
  if (!runs_backward(a.kind)) {
    needs.writes.push_back(output_of_block);
    const bool keeps = a.kind == ActionKind::recompute || (backward_[b] && !again(b));
    if (keeps) needs.writes.push_back(saved_of_block);
    if (a.kind == ActionKind::recompute) return;
    if (b > 0 && !backward_[b]) needs.frees.push_back(input);
    if (!training() && b + 1 == cost_.blocks.size()) needs.frees.push_back(output_of_block);
    if (a.block == last_reader_ && !backward_[b]) needs.frees.push_back({batch, -1, -1, m});
    return;
  }
  needs.reads.push_back(output_of_block);
  needs.reads.push_back(saved_of_block);
  needs.frees = {output_of_block, saved_of_block};
  const bool splits = a.kind == ActionKind::backward_input;
  if (splits) needs.writes.push_back({held, a.block, -1, m, block.held_bytes});
  if (b > 0 && (again(b - 1) || !backward_[b - 1]) && !(splits && !own_.local(a.block - 1)))
    needs.frees.push_back(input);
  if (a.block == last_reader_) needs.frees.push_back({batch, -1, -1, m});
  if (own_.ends_chunk(a.block)) {
    const Need own = {output_gradient, a.block, -1, m, block.boundary_bytes()};
    needs.reads.push_back(own);
    if (!splits) needs.frees.push_back(own);
  }
  if (b > 0 && own_.ends_chunk(a.block - 1) && a.block > own_.first_trained())
    needs.writes.push_back(
        {output_gradient, a.block - 1, -1, m, cost_.blocks[b - 1].boundary_bytes()});
  gradient_needs(a, needs);
}

/// The gradients that a backward, or a part of one, adds to.
void BufferNeeds::gradient_needs(const Action& a, Needs& needs) const {
  for (const int g : cost_.blocks[to_index(a.block)].groups) {
    if (!trainable(g)) continue;
    const std::int64_t elements = layout_.whole_gradient_elements(g);
    if (layout_.reduced_from_slot(g)) {
      needs.writes.push_back({BufferRole::whole_gradient, -1, g, a.micro_batch, elements});
    } else {
      needs.writes.push_back({BufferRole::gradient, g, -1, -1, elements});
    }
  }
}

/// What is held may be the gradient that came from the chunk behind, or an input that was received.
void BufferNeeds::weight_needs(const Action& a, Needs& needs) const {
  using enum BufferRole;
  const auto add = [&](BufferRole role, int block, Bytes bytes) {
    needs.reads.push_back({role, block, -1, a.micro_batch, bytes});
    needs.frees.push_back(needs.reads.back());
  };
  add(held, a.block, cost_.blocks[to_index(a.block)].held_bytes);
  if (own_.ends_chunk(a.block))
    add(output_gradient, a.block, cost_.blocks[to_index(a.block)].boundary_bytes());
  if (a.block > 0 && !own_.local(a.block - 1))
    add(output, a.block - 1, cost_.blocks[to_index(a.block) - 1].boundary_bytes());
  gradient_needs(a, needs);
}

void BufferNeeds::reduce_needs(const Action& a, Needs& needs) const {
  using enum BufferRole;
  const FlatGroup& flat = layout_.flat[to_index(a.group)];
  const bool narrow = layout_.widths.reduce_wire < layout_.widths.gradient;
  needs.writes.push_back({gradient, a.group});
  if (layout_.reduced_from_slot(a.group)) {
    const Need whole = {whole_gradient, -1, a.group, a.micro_batch,
                        layout_.whole_gradient_elements(a.group)};
    needs.reads.push_back(whole);
    needs.frees.push_back(whole);
    if (!narrow && a.micro_batch > 0)
      needs.writes.push_back({shard_sum, -1, -1, -1, flat.shard_size()});
  }
  if (narrow) needs.writes.push_back({wire, -1, -1, -1, flat.padded()});
  if (const Bytes codes = layout_.reduce_scratch(a.group); codes > 0)
    needs.writes.push_back({coded_gradient, -1, -1, -1, codes});
}

void BufferNeeds::gather_needs(int i, Needs& needs) const {
  using enum BufferRole;
  const int group = program_.actions[to_index(i)].group;
  const std::int64_t padded = layout_.flat[to_index(group)].padded();
  if (!layout_.gathered_into_slot(group)) {
    needs.writes.push_back({parameters, group, -1, -1, padded});
    return;
  }
  const Turn& turn = turns_[to_index(i) % turns_.size()];
  const bool keeps = layout_.second_degree > 1 && turn.count > 1;
  const Need second = {second_shard, group, -1, -1, layout_.second_elements(group)};
  if (keeps && turn.index > 0) {
    needs.writes.push_back({gathered, -1, -1, -1, padded});
    needs.reads.push_back(second);
    if (turn.index + 1 == turn.count) needs.frees.push_back(second);
    return;
  }
  if (layout_.groups[to_index(group)].parameter_place == Place::device) {
    needs.writes.push_back({gathered, -1, -1, -1, padded});
    needs.reads.push_back({parameters, group});
  } else {
    needs.writes.push_back({gathered, -1, group, -1, padded});  // a fetch has begun it
  }
  if (keeps) needs.writes.push_back(second);
  if (const Bytes codes = layout_.gather_scratch(group); codes > 0)
    needs.writes.push_back({coded_parameters, -1, -1, -1, codes});
}

Needs BufferNeeds::of(int i) const {
  const Action& a = program_.actions[to_index(i)];
  Needs needs;
  using enum BufferRole;
  switch (a.kind) {
    case ActionKind::load:
      needs.writes.push_back({batch, -1, -1, -1, cost_.batch_bytes});
      break;
    case ActionKind::fetch_parameters:
    case ActionKind::fetch_states:
    case ActionKind::evict_states:
    case ActionKind::fetch_input:
    case ActionKind::evict_input:
      offload_needs(a, needs);
      break;
    case ActionKind::gather:
      gather_needs(i, needs);
      break;
    case ActionKind::release:
      needs.frees.push_back({gathered, -1, a.group});
      break;
    case ActionKind::send_down:
    case ActionKind::send_up:
    case ActionKind::receive_down:
    case ActionKind::receive_up:
    case ActionKind::discard: {
      // A rank sends its own blocks' outputs and receives the gradients of them.
      const bool receives = a.kind == ActionKind::receive_down || a.kind == ActionKind::receive_up;
      const Need tensor = {own_.local(a.block) != receives ? output : output_gradient, a.block, -1,
                           a.micro_batch, cost_.blocks[to_index(a.block)].boundary_bytes()};
      (a.kind == ActionKind::discard ? needs.frees
       : receives                    ? needs.writes
                                     : needs.reads)
          .push_back(tensor);
      break;
    }
    case ActionKind::forward:
    case ActionKind::recompute:
    case ActionKind::backward:
    case ActionKind::backward_input:
      block_needs(a, needs);
      break;
    case ActionKind::backward_weight:
      weight_needs(a, needs);
      break;
    case ActionKind::clear:
      if (layout_.reduced_from_slot(a.group)) {
        needs.writes.push_back(
            {whole_gradient, -1, -1, -1, layout_.whole_gradient_elements(a.group)});
      } else {
        needs.writes.push_back(
            {gradient, a.group, -1, -1, layout_.whole_gradient_elements(a.group)});
      }
      break;
    case ActionKind::reduce:
      reduce_needs(a, needs);
      break;
    case ActionKind::gather_sum:
      needs.writes.push_back({gradient, a.group});
      break;
    case ActionKind::norm:
      for (int g = 0; g < static_cast<int>(cost_.groups.size()); ++g) {
        if (trainable(g) && own_.holds(g)) needs.reads.push_back({gradient, g});
      }
      break;
    case ActionKind::update:
      if (layout_.groups[to_index(a.group)].update_method != UpdateMethod::device) {
        offload_needs(a, needs);
        break;
      }
      needs.reads.push_back({gradient, a.group});
      needs.writes.push_back({parameters, a.group});
      if (layout_.widths.master > 0) needs.writes.push_back({master, a.group});
      needs.writes.push_back({moments, a.group});
      if (layout_.widths.average > 0) needs.writes.push_back({average, a.group});
      break;
  }
  return needs;
}

/// What fetch, evict and the update of a part read, write and free.
void BufferNeeds::offload_needs(const Action& a, Needs& needs) const {
  using enum BufferRole;
  using enum ActionKind;
  if (a.kind == fetch_input || a.kind == evict_input) {
    const Bytes bytes = cost_.blocks[to_index(a.block)].boundary_bytes();
    const Need on_host = {host_input, a.block, -1, a.kind == fetch_input ? a.micro_batch : -1,
                          bytes};
    if (a.kind == evict_input) {
      needs.reads.push_back({output, a.block, -1, a.micro_batch, bytes});
      needs.writes.push_back(on_host);
    } else {
      needs.reads.push_back(on_host);
      needs.frees.push_back(on_host);
      needs.writes.push_back({fetched_input, -1, -1, -1, bytes});
    }
    return;
  }
  const GroupLayout& kind = layout_.groups[to_index(a.group)];
  const Need rest = {parameters, a.group};
  if (a.kind == fetch_parameters) {
    needs.reads.push_back(rest);
    needs.writes.push_back({gathered, -1, -1, -1, layout_.flat[to_index(a.group)].padded()});
    return;
  }
  const bool master_apart = layout_.widths.master > 0;
  const bool parameters_elsewhere = kind.parameter_place != Place::device,
             states_elsewhere = kind.state_place != Place::device;
  const std::int64_t elements = layout_.part(a.group, a.part).size();
  const auto states = [&](std::vector<Need>& list) {
    if (master_apart) list.push_back({master, a.group});
    list.push_back({moments, a.group});
  };
  if (kind.update_method == UpdateMethod::streamed) {
    const Bytes bytes = elements * state_slot_width(kind, layout_.widths);
    const bool fetches = states_elsewhere || !master_apart;
    const Need empty = {state_slot, -1, -1, -1, bytes}, full = {state_slot, -1, a.group, -1, bytes};
    if (a.kind == fetch_states) {
      if (states_elsewhere) states(needs.reads);
      if (parameters_elsewhere && !master_apart) needs.reads.push_back(rest);
      needs.writes.push_back(empty);
    } else if (a.kind == update) {
      needs.reads.push_back({gradient, a.group});
      needs.writes.push_back(fetches ? full : empty);
      if (!parameters_elsewhere) needs.writes.push_back(rest);
      if (!states_elsewhere) states(needs.writes);
    } else {
      needs.reads.push_back(full);
      needs.frees.push_back(full);
      if (states_elsewhere) states(needs.writes);
      if (parameters_elsewhere) needs.writes.push_back(rest);
    }
    return;
  }
  const Bytes bytes = elements * gradient_slot_width(kind, layout_.widths);
  const Need empty = {gradient_slot, -1, -1, -1, bytes},
             full = {gradient_slot, -1, a.group, -1, bytes};
  if (a.kind == evict_states) {
    needs.reads.push_back({gradient, a.group});
    if (!parameters_elsewhere && !master_apart) needs.reads.push_back(rest);
    needs.writes.push_back(empty);
  } else if (a.kind == update) {
    states(needs.writes);
    if (parameters_elsewhere) {
      needs.reads.push_back(full);
      needs.frees.push_back(full);
      needs.writes.push_back(rest);
    } else {
      needs.writes.push_back(full);
    }
  } else {
    needs.reads.push_back(full);
    needs.frees.push_back(full);
    needs.writes.push_back(rest);
  }
}

}  // namespace dstrain
