#include "engine/base/index.h"
#include "engine/collectives/quantized.h"
#include "engine/mesh/shard_groups.h"
#include "engine/train/execute/executor.h"

/// Gathers and reductions of groups over the data ranks.
namespace dstrain {

Communicator& Executor::along(CommChannel channel) const {
  return layout_.extent(channel.axis).ranks > 1 ? communicator(channel) : *alone_;
}

Communicator& Executor::ranks_of(const Action& action) const {
  return communicator({action.comm.front().axis, action.lane});
}

at::Tensor Executor::whole_gradient(const Prepared& prepared, const Action& action) const {
  const std::vector<int>& ids = action.kind == ActionKind::clear ? action.writes : action.reads;
  const at::Tensor slot = buffer_of(prepared, ids, BufferRole::whole_gradient);
  if (!slot.defined()) return states_.collecting_gradient(action.group);
  return slot.narrow(0, 0, layout_.whole_gradient_elements(action.group));
}

void Executor::gather(const Prepared& prepared, const Action& action) {
  const int group = action.group;
  const auto buffer = [&](const std::vector<int>& ids, BufferRole role) {
    return buffer_of(prepared, ids, role);
  };
  at::Tensor slot = buffer(action.writes, BufferRole::gathered);
  if (!slot.defined()) {
    at::Tensor whole = states_.resident_parameters(group);
    ranks_of(action).all_gather(whole, states_.own_parameters(group));
    return;
  }
  at::Tensor whole = slot.narrow(0, 0, states_.flat(group).padded());
  if (const at::Tensor second = buffer(action.reads, BufferRole::second_shard); second.defined()) {
    ranks_of(action).all_gather(whole, second);
    states_.bind_values(group, whole);
    return;
  }
  Communicator& shards = ranks_of(action);
  // What rests on the host was fetched to its place.
  const bool fetched = layout_.groups[to_index(group)].parameter_place != Place::device;
  const Range shard = states_.own_range(group);
  const at::Tensor own =
      fetched ? whole.narrow(0, shard.begin, shard.size()) : states_.own_parameters(group);
  if (at::Tensor codes = buffer(action.writes, BufferRole::coded_parameters); codes.defined()) {
    all_gather_quantized(shards, layout_.coded(group, *layout_.gather_format), own, whole, codes);
  } else {
    shards.all_gather(whole, own);
  }
  if (const at::Tensor second = buffer(action.writes, BufferRole::second_shard); second.defined()) {
    const Range kept = ShardGroups(layout_.shard_degree, layout_.second_degree)
                           .second_shard(whole.numel(), shards.rank());
    second.copy_(whole.narrow(0, kept.begin, kept.size()));
  }
  states_.bind_values(group, whole);
}

void Executor::reduce_codes(const Prepared& prepared, const Action& action, std::int64_t step,
                            at::Tensor& whole, const at::Tensor& sum) {
  at::Tensor scratch = buffer_of(prepared, action.writes, BufferRole::coded_gradient);
  // Groups lie one after the other in the whole, and inner groups are counted over all replicas.
  std::int64_t first_element = 0;
  for (int g = 0; g < action.group; ++g) first_element += states_.flat(g).padded();
  const std::int64_t replica = options_.data_rank / layout_.shard_degree;
  const wire::RandomPlace place = {.seed = static_cast<std::uint64_t>(options_.seed),
                                   .step = step,
                                   .micro_batch = action.micro_batch,
                                   .node = replica * layout_.extent(CommAxis::shard_outer).ranks,
                                   .first_element = first_element};
  reduce_scatter_quantized({.inner = along({CommAxis::shard_inner, action.lane}),
                            .outer = along({CommAxis::shard_outer, action.lane})},
                           layout_.coded(action.group, *layout_.reduce_format), whole, {.own = sum},
                           place, scratch);
}

at::Tensor Executor::summed_gradient(int group) const {
  const at::Tensor own = states_.own_gradient(group);
  if (!layout_.splits_sum(group)) return own;
  const CommChannel channel = {layout_.groups[to_index(group)].copies, Lane::reduce};
  const std::int64_t part = layout_.summed_elements(group);
  return own.narrow(0, communicator(channel).rank() * part, part);
}

void Executor::gather_sum(const Action& action) {
  at::Tensor whole = states_.resident_gradient(action.group);
  ranks_of(action).all_gather(whole, summed_gradient(action.group));
}

void Executor::reduce(const Prepared& prepared, const Action& action, std::int64_t step) {
  const int group = action.group;
  at::Tensor whole = whole_gradient(prepared, action).narrow(0, 0, states_.flat(group).padded());
  states_.settle_gradients(group);
  const at::Tensor own = states_.own_gradient(group);
  const auto buffer = [&](BufferRole role) { return buffer_of(prepared, action.writes, role); };
  const at::Tensor wire = buffer(BufferRole::wire), shard_sum = buffer(BufferRole::shard_sum);
  // Sums of further micro-batches are added to that of the first.
  const bool accumulate = !action.reads.empty() && action.micro_batch > 0;
  const bool codes = layout_.reduces_codes(group);
  const auto sum_of = [&](std::int64_t elements) {
    return shard_sum.defined() ? shard_sum.narrow(0, 0, elements) : own;
  };
  at::Tensor part = wire.defined() ? wire.narrow(0, 0, whole.numel()).copy_(whole) : whole;
  if (codes) {
    part = sum_of(own.numel());
    reduce_codes(prepared, action, step, whole, part);
  }
  if (layout_.splits_sum(group)) {
    at::Tensor sum = summed_gradient(group);
    ranks_of(action).reduce_scatter(sum, whole);
    return;
  }
  for (const Comm& comm : action.comm) {
    if (codes && comm.op != CommOp::all_reduce) continue;
    Communicator& ranks = communicator({comm.axis, action.lane});
    if (comm.op == CommOp::reduce_scatter) {
      const at::Tensor sent = part;
      const Range shard = states_.flat(group).shard(ranks.rank());
      part = wire.defined() ? sent.narrow(0, shard.begin, shard.size()) : sum_of(shard.size());
      ranks.reduce_scatter(part, sent);
    } else {
      ranks.all_reduce(part, ReduceOp::sum);
    }
  }
  if (accumulate) {
    own.add_(part);
  } else if (wire.defined()) {
    own.copy_(part);
  }
}

}  // namespace dstrain
