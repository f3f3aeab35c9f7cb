#include <algorithm>
#include <variant>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/collectives/coded_messages.h"
#include "engine/train/execute/executor.h"

/// What the work of an action does to parameters and gradients of groups.
namespace dstrain {

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

void Executor::code(const Prepared& prepared, const Action& action, const work::Code& code,
                    std::int64_t step) {
  const CodedGroup& group = code.group;
  const at::Tensor from = memory_.tensor(code.from, buffers_of(prepared)),
                   to = memory_.tensor(code.to, buffers_of(prepared));
  if (code.decode && !code.sum) return decode_shards(group, from, to);
  const auto shard = static_cast<int>(memory_.begin_of(code.shard, code.share));
  if (code.sum) return sum_messages(group, shard, from, to);
  const bool gradient =
      prepared.program->buffers[to_index(code.to.buffer)].role == BufferRole::coded_gradient;
  if (!gradient || group.format != CodeFormat::int4)
    return encode_shard(group, shard, from, to, from.scalar_type());
  // Groups lie one after the other in the whole, and inner groups are counted over all replicas.
  std::int64_t first_element = 0;
  for (int g = 0; g < action.group; ++g) first_element += states_.flat(g).padded();
  const Communicator* inner = communicators_.find({CommAxis::shard_inner, action.lane});
  encode_shard_randomly(group, shard, from, to,
                        {.seed = static_cast<std::uint64_t>(options_.seed),
                         .step = step,
                         .micro_batch = action.micro_batch,
                         .node = options_.data_rank / (inner != nullptr ? inner->size() : 1),
                         .first_element = first_element});
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
  for (const Work& work : action.work) {
    if (const auto* exchange = std::get_if<work::Exchange>(&work)) {
      this->exchange(prepared, action, *exchange);
    } else if (const auto* move = std::get_if<work::Move>(&work)) {
      this->move(prepared, action, *move);
    } else if (const auto* code = std::get_if<work::Code>(&work)) {
      this->code(prepared, action, *code, step);
    } else {
      states_.bind_empty_gradients(
          action.group, memory_.tensor(std::get<work::Zero>(work).to, buffers_of(prepared)));
    }
  }
  bind_whole(prepared, action);
}

void Executor::update(const Prepared& prepared, const Action& action, const StepInputs& inputs) {
  if (action.part >= 0) {
    const auto& update = std::get<work::Update>(action.work.front());
    offloader_.update(memory_.operands(update, buffers_of(prepared)), inputs.lr, control_,
                      lane(action.lane));
    return;
  }
  updater_.update(
      action.group, inputs.lr, control_,
      action.comm.empty() ? nullptr : &communicator({action.comm.front().axis, Lane::compute}));
  if (inputs.average_share > 0) updater_.average(action.group, inputs.average_share, control_);
}

}  // namespace dstrain
