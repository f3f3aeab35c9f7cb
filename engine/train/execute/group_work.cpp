#include "engine/train/execute/group_work.h"

#include <algorithm>
#include <map>
#include <variant>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/collectives/coded_messages.h"
#include "engine/kernels/optimizer/optimizer.h"

namespace dstrain {
namespace {

/// The indices of this rank along axes with several ranks.
std::map<CommAxis, int> indices_along(const Communicators& communicators) {
  std::map<CommAxis, int> indices;
  for (const auto& [channel, ranks] : communicators) {
    // Links between stages have two ranks.
    if (channel.axis != Axis::pipeline) indices[channel.axis] = ranks->rank();
  }
  return indices;
}

}  // namespace

GroupWork::GroupWork(StateStore& states, Communicators& communicators, Offloader& offloader,
                     Updater& updater, const GroupWorkOptions& options)
    : states_(states),
      communicators_(communicators),
      offloader_(offloader),
      updater_(updater),
      options_(options),
      memory_(states, indices_along(communicators)) {}

void GroupWork::exchange(const Action& action, const work::Exchange& exchange,
                         const Buffers& buffers) {
  Communicator& ranks = communicators_.at({exchange.axis, action.lane});
  at::Tensor from = memory_.tensor(exchange.from, buffers),
             to = memory_.tensor(exchange.to, buffers);
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

void GroupWork::move(const work::Move& move, const Buffers& buffers, const Stream& stream,
                     bool awaited) {
  for (const ViewMemory::Copy& copy : memory_.copies(move, buffers)) {
    if (move.add) {
      copy.to.tensor.add_(copy.from.tensor);
    } else {
      offloader_.copy(copy.from, copy.to, stream, awaited);
    }
  }
}

void GroupWork::code(const Action& action, const work::Code& code, const Buffers& buffers,
                     std::int64_t step) {
  const CodedGroup& group = code.group;
  const at::Tensor from = memory_.tensor(code.from, buffers), to = memory_.tensor(code.to, buffers);
  if (code.decode && !code.sum) return decode_shards(group, from, to);
  const auto shard = static_cast<int>(memory_.begin_of(code.shard, code.share));
  if (code.sum) return sum_messages(group, shard, from, to);
  const bool gradient = action.lane == Lane::reduce;
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

void GroupWork::bind_whole(const Action& action, const Buffers& buffers) {
  const int slot = buffers.program.find(action.writes, BufferRole::gathered);
  if (slot < 0) return;
  const std::int64_t elements = states_.flat(action.group).padded();
  const bool whole = std::ranges::any_of(action.work, [&](const Work& work) {
    return std::ranges::any_of(views_written(work), [&](const View& view) {
      return view.buffer == slot && view.elements == elements;
    });
  });
  if (whole)
    states_.bind_values(action.group, buffers.tensors[to_index(slot)].narrow(0, 0, elements));
}

void GroupWork::bind_gradients(const Action& action, const std::vector<int>& groups,
                               const Buffers& buffers) {
  auto group = groups.begin();
  for (const int id : action.writes) {
    const BufferRole role = buffers.program.buffers[to_index(id)].role;
    if (role != BufferRole::gradient && role != BufferRole::whole_gradient) continue;
    while (!states_.trainable(*group)) ++group;
    // Those at rest stay bound.
    if (role == BufferRole::whole_gradient)
      states_.bind_gradients(*group, buffers.tensors[to_index(id)]);
    ++group;
  }
}

void GroupWork::run(const Action& action, const Buffers& buffers, std::int64_t step,
                    const Stream& stream) {
  if (action.lane == Lane::reduce) {
    const int slot = buffers.program.find(action.reads, BufferRole::whole_gradient);
    if (slot >= 0) states_.bind_gradients(action.group, buffers.tensors[to_index(slot)]);
    states_.settle_gradients(action.group);
  }
  for (const Work& work : action.work) {
    if (const auto* exchange = std::get_if<work::Exchange>(&work)) {
      this->exchange(action, *exchange, buffers);
    } else if (const auto* move = std::get_if<work::Move>(&work)) {
      this->move(*move, buffers, stream, exchanges_groups(action.lane));
    } else if (const auto* code = std::get_if<work::Code>(&work)) {
      this->code(action, *code, buffers, step);
    } else {
      states_.bind_empty_gradients(action.group,
                                   memory_.tensor(std::get<work::Zero>(work).to, buffers));
    }
  }
  bind_whole(action, buffers);
}

void GroupWork::add_squares(const work::Norm& norm, const Buffers& buffers,
                            const at::Tensor& sums) {
  for (const work::Square& square : norm.squares) {
    states_.settle_gradients(buffers.program.buffers[to_index(square.gradient.buffer)].owner);
    optimizer::add_squares(memory_.tensor(square.gradient, buffers), 1.0 / square.holders, sums);
  }
}

void GroupWork::update(const Action& action, const Buffers& buffers, const Rates& rates,
                       const at::Tensor& control, const Stream& stream) {
  if (action.part >= 0) {
    for (const Work& work : action.work) {
      if (const auto* parked = std::get_if<work::Move>(&work))
        move(*parked, buffers, stream, /*awaited=*/false);
      else
        offloader_.update(memory_.operands(std::get<work::Update>(work), buffers), rates.learning,
                          control, stream);
    }
    return;
  }
  updater_.update(action.group, rates.learning, control,
                  action.comm.empty()
                      ? nullptr
                      : &communicators_.at({action.comm.front().axis, Lane::compute}));
  if (rates.average_share > 0) updater_.average(action.group, rates.average_share, control);
}

}  // namespace dstrain
