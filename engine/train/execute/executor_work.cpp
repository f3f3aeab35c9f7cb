#include <algorithm>
#include <variant>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/collectives/quantized.h"
#include "engine/train/execute/executor.h"

/// What the work of an action does to parameters and gradients of groups.
namespace dstrain {

Communicator& Executor::along(CommChannel channel) const {
  Communicator* ranks = communicators_.find(channel);
  return ranks != nullptr ? *ranks : *alone_;
}

void Executor::exchange(const Prepared& prepared, const Action& action,
                        const work::Exchange& exchange) {
  Communicator& ranks = communicator({exchange.axis, action.lane});
  at::Tensor from = memory_.tensor(exchange.from, buffers_of(prepared)),
             to = memory_.tensor(exchange.to, buffers_of(prepared));
  if (exchange.scale != 1) from.mul_(exchange.scale);
  switch (exchange.op) {
    case CommOp::all_gather:
      return ranks.all_gather(to, from);
    case CommOp::reduce_scatter:
      return ranks.reduce_scatter(to, from);
    case CommOp::all_to_all:
      return ranks.all_to_all(to, from);
    case CommOp::all_reduce:
      DSTRAIN_CHECK(exchange.from == exchange.to, "an all-reduce between two places");
      return ranks.all_reduce(to, ReduceOp::sum);
    default:
      DSTRAIN_CHECK(false, "an exchange that is not of a group");
  }
}

void Executor::move(const Prepared& prepared, const Action& action, const work::Move& move) {
  for (const ViewMemory::Copy& copy : memory_.copies(move, buffers_of(prepared))) {
    if (move.add) {
      copy.to.tensor.add_(copy.from.tensor);
    } else {
      offloader_.copy(copy.from, copy.to, lane(action.lane));
    }
  }
}

std::size_t Executor::exchange_codes(const Prepared& prepared, const Action& action,
                                     std::int64_t step) {
  const std::vector<Work>& list = action.work;
  const auto is_code = [](const Work& work) { return std::holds_alternative<work::Code>(work); };
  const auto first = std::ranges::find_if(list, is_code);
  const auto last = std::ranges::find_if(list.rbegin(), list.rend(), is_code);
  const auto& code = std::get<work::Code>(*first);
  const auto& decode = std::get<work::Code>(*last);
  const ViewMemory::Buffers buffers = buffers_of(prepared);
  const CodedGroup group = layout_.coded(action.group, code.format);
  at::Tensor scratch = prepared.buffers[to_index(decode.from.buffer)];
  at::Tensor to = memory_.tensor(decode.to, buffers);
  if (!decode.sum) {
    const auto& sent = std::get<work::Exchange>(*std::next(first));
    all_gather_quantized(communicator({sent.axis, action.lane}), group,
                         memory_.tensor(code.from, buffers), to, scratch);
  } else {
    at::Tensor whole =
        memory_.tensor({.buffer = code.from.buffer, .elements = group.elements}, buffers);
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
                             group, whole, {.own = to}, place, scratch);
  }
  return static_cast<std::size_t>(std::distance(list.begin(), last.base()));
}

void Executor::bind_whole(const Prepared& prepared, const Action& action) {
  const int slot = prepared.program->find(action.writes, BufferRole::gathered);
  if (slot < 0) return;
  const std::int64_t elements = states_.flat(action.group).padded();
  const bool whole = std::ranges::any_of(action.work, [&](const Work& work) {
    return std::ranges::any_of(views_written(work), [&](const View& view) {
      return view.buffer == slot && view.elements == elements;
    });
  });
  if (whole)
    states_.bind_values(action.group, prepared.buffers[to_index(slot)].narrow(0, 0, elements));
}

void Executor::run_work(const Prepared& prepared, const Action& action, std::int64_t step) {
  if (action.kind == ActionKind::reduce) states_.settle_gradients(action.group);
  const bool codes = std::ranges::any_of(
      action.work, [](const Work& work) { return std::holds_alternative<work::Code>(work); });
  for (std::size_t i = codes ? exchange_codes(prepared, action, step) : 0; i < action.work.size();
       ++i) {
    const Work& work = action.work[i];
    if (const auto* exchange = std::get_if<work::Exchange>(&work)) {
      this->exchange(prepared, action, *exchange);
    } else if (const auto* move = std::get_if<work::Move>(&work)) {
      this->move(prepared, action, *move);
    } else {
      states_.bind_empty_gradients(
          action.group, memory_.tensor(std::get<work::Zero>(work).to, buffers_of(prepared)));
    }
  }
  bind_whole(prepared, action);
}

}  // namespace dstrain
