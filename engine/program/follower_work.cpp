#include "engine/program/follower.h"

/// Loads, moves, exchanges and codes.
namespace dstrain::meaning {

void Follower::follow(const work::Load& load) {
  if (action().micro_batch != loaded_++) problem("comes twice or out of order");
  if (load.to.elements != cost_.batch_bytes)
    problem("loads {} bytes instead of {}", load.to.elements, cost_.batch_bytes);
  write(load.to, {.kind = Kind::batch, .micro_batch = action().micro_batch});
}

void Follower::follow(const work::Zero& zero) {
  const int group = action().group;
  if (group < 0 || zero.to.elements != layout_.whole_gradient_elements(group) ||
      zero.to.begin != 0 || zero.to.share)
    return problem("empties a part of {}, or more", name(zero.to.buffer));
  write(zero.to, {.kind = Kind::gradient, .owner = group, .micro_batch = action().micro_batch});
}

void Follower::follow(const work::Move& move) {
  const std::vector<Part> parts = read(move.from);
  if (parts.empty()) return;
  belongs(parts.front().value);
  const std::int64_t values = values_of(move.from, program_.buffers);
  if (values != values_of(move.to, program_.buffers)) {
    problem("moves {} values to {}", values, values_of(move.to, program_.buffers));
    return;
  }
  const Buffer& to = buffer(move.to.buffer);
  const std::int64_t unit = move.to.width > 0 ? move.to.width / to.width : 1;
  std::int64_t done = 0;
  for (const Part& part : parts) {
    if (part.value.unit == 0) return problem("moves states of several widths");
    const std::int64_t count = part.elements / part.value.unit;
    View target = move.to;
    target.begin += done * unit;
    target.elements = count * unit;
    done += count;
    Value value = part.value;
    value.unit = unit;
    if (move.add) {
      const auto there = read_one(target);
      if (!there) return;
      Value sum = *there;
      const bool alike = value.kind == Kind::gradient && sum.kind == Kind::gradient &&
                         sum.owner == value.owner && sum.begin == value.begin &&
                         sum.share == value.share && sum.summed == value.summed &&
                         sum.scale == value.scale && sum.added.size() == value.added.size();
      if (!alike) return problem("adds to another sum in {}", name(move.to.buffer));
      for (std::size_t k = 0; k < sum.added.size(); ++k)
        sum.added[k] = static_cast<std::uint8_t>(sum.added[k] + value.added[k]);
      sum.micro_batch = value.micro_batch;
      write(target, std::move(sum), /*in_place=*/true);
    } else {
      write(target, std::move(value));
    }
  }
  if (done != values) problem("moves shares and what lies below them");
}

void Follower::follow(const work::Exchange& exchange) {
  if (exchange.op == CommOp::send || exchange.op == CommOp::receive) return transfer(exchange);
  if (layout_.extent(exchange.axis).ranks == 1)
    return problem("exchanges with no other rank along {}", comm_axis_name(exchange.axis));
  const bool sums = exchange.op == CommOp::reduce_scatter || exchange.op == CommOp::all_reduce;
  if (!sums && exchange.scale != 1) problem("scales what it does not sum");
  for (const View* view : {&exchange.from, &exchange.to}) {
    const int width = buffer(view->buffer).width;
    if (width != exchange.width)
      problem("has elements of {} bytes on the wire, of {} in {}", exchange.width, width,
              name(view->buffer));
  }
  if (exchange.peer >= 0) problem("names a peer");
  if (exchange.op == CommOp::all_to_all) return all_to_all(exchange);
  if (sums) return reduce(exchange);
  if (auto value = read_one(exchange.from)) gather(exchange, std::move(*value));
}

/// Shares along the axis become the whole.
void Follower::gather(const work::Exchange& exchange, Value value) {
  const int ranks = layout_.extent(exchange.axis).ranks;
  belongs(value);
  if (exchange.to.elements != exchange.from.elements * ranks) {
    problem("gathers {} elements of {} ranks into {}", exchange.from.elements, ranks,
            exchange.to.elements);
    return;
  }
  if (value.coded) {  // a message of each rank
    if (!value.share || value.share->axis != plain(exchange.axis))
      return problem("gathers messages along {}", comm_axis_name(exchange.axis));
    return write(exchange.to, std::move(value));
  }
  if (!value.share || value.share->axis != plain(exchange.axis) ||
      value.share->stride != exchange.from.elements || value.begin != 0) {
    problem("gathers along {} what does not lie along it", comm_axis_name(exchange.axis));
    return;
  }
  value.share = std::nullopt;
  write(exchange.to, std::move(value), /*in_place=*/exchange.from.buffer == exchange.to.buffer);
}

void Follower::sum_into(Value& value, CommAxis axis, double scale) {
  const std::uint32_t bits = axis_bits(axis, layout_);
  if ((value.summed & bits) != 0)
    problem("sums along {} what is summed along it", comm_axis_name(axis));
  value.summed |= bits;
  value.scale *= scale;
}

void Follower::reduce(const work::Exchange& exchange) {
  auto value = read_one(exchange.from);
  if (!value) return;
  const int ranks = layout_.extent(exchange.axis).ranks;
  if (value->kind != Kind::gradient || value->coded) {
    problem("sums {}", kind_name(value->kind));
    return;
  }
  belongs(*value);
  sum_into(*value, exchange.axis, exchange.scale);
  if (exchange.op == CommOp::all_reduce) {
    if (exchange.from != exchange.to) problem("sums into another view than its own");
    return write(exchange.to, std::move(*value), /*in_place=*/true);
  }
  if (exchange.from.elements != exchange.to.elements * ranks || value->share) {
    problem("cuts {} elements into {} parts of {}", exchange.from.elements, ranks,
            exchange.to.elements);
    return;
  }
  value->share = Share{plain(exchange.axis), exchange.to.elements};
  write(exchange.to, std::move(*value), /*in_place=*/true);
}

/// A message for each rank of the axis, in its order, becomes one from each.
void Follower::all_to_all(const work::Exchange& exchange) {
  const std::vector<Part> parts = read(exchange.from);
  if (parts.empty()) return;
  const int ranks = layout_.extent(exchange.axis).ranks;
  if (exchange.from.elements != exchange.to.elements || static_cast<int>(parts.size()) != ranks)
    return problem("exchanges {} messages with {} ranks", parts.size(), ranks);
  Value value = parts.front().value;
  const int group = value.owner;
  belongs(value);
  if (group < 0 || value.kind != Kind::gradient || !value.coded)
    return problem("exchanges {}", kind_name(value.kind));
  const std::int64_t shard = padded(group) / layout_.shards(group);
  for (int rank = 0; rank < ranks; ++rank) {
    Value message = parts[to_index(rank)].value;
    const bool own = message.begin == rank * padded(group) / ranks &&
                     parts[to_index(rank)].elements == exchange.from.elements / ranks;
    message.begin = value.begin;
    if (!own || message != value) return problem("sends messages of other parts to the ranks");
  }
  // Inner groups have summed the shards of each rank's place in them.
  const bool inner = layout_.second_degree > 1;
  if (plain(exchange.axis) != plain(CommAxis::shard_outer) ||
      value.share != (inner ? std::optional(Share{CommAxis::shard_inner, shard}) : std::nullopt) ||
      value.messages_of != 0)
    return problem("exchanges parts of other ranks along {}", comm_axis_name(exchange.axis));
  value.begin = 0;
  value.share = Share{Axis::shard, shard};
  value.messages_of = axis_bits(exchange.axis, layout_);
  write(exchange.to, std::move(value));
}

/// The other side of the block's boundary has what this rank sends, or sends it.
void Follower::transfer(const work::Exchange& exchange) {
  const bool sends = exchange.op == CommOp::send;
  const View& view = sends ? exchange.from : exchange.to;
  const int block = action().block, last = static_cast<int>(cost_.blocks.size()) - 1;
  if (block < 0 || block >= last) return problem("transfers no boundary");
  const bool gradient = role_row(buffer(view.buffer).role).holds == Kind::output_gradient;
  const Value value = of_block(gradient ? Kind::output_gradient : Kind::output, block);
  // An output goes down the blocks, its gradient up.
  const int other = layout_.stages.rank_of(sends == gradient ? block : block + 1);
  if (exchange.axis != Axis::pipeline || exchange.peer != other)
    problem("transfers to or from coordinate {} instead of {}", exchange.peer, other);
  const Lane lane = action().lane;
  const int degree = layout_.pipeline_degree(),
            step = lane == Lane::send_down || lane == Lane::receive_up ? 1 : degree - 1;
  if ((program_.coordinate + step) % degree != other)
    problem("goes the other way than its lane, {}", lane_name(lane));
  if (exchange.width != layout_.widths.compute || exchange.scale != 1 ||
      view.elements != boundary(block))
    problem("transfers another size");
  if (!sends) return write(view, value);
  const auto own = read_one(view);
  if (own && *own != value)
    problem("sends {} of another block or micro-batch", kind_name(own->kind));
  if (!(gradient ? sent_gradients_ : sent_outputs_).insert({block, value.micro_batch}).second)
    problem("sends a second time");
}

void Follower::follow(const work::Code& code) {
  const std::vector<Part> parts = read(code.from);
  if (parts.empty()) return;
  Value value = parts.front().value;
  const int group = value.owner;
  if (parts.size() != 1 || group < 0 ||
      (value.kind != Kind::gradient && value.kind != Kind::parameters) ||
      value.coded != code.decode)
    return problem("codes {} values", parts.size());
  belongs(value);
  const auto& format = value.kind == Kind::gradient ? layout_.reduce_format : layout_.gather_format;
  if (!format || code.group != layout_.coded(group, *format))
    return problem("codes a group in another way than the layout's");
  const std::int64_t message =
      code.group.message_bytes(buffer((code.decode ? code.to : code.from).buffer).width);
  const View& plain = code.decode ? code.to : code.from;
  const View& coded = code.decode ? code.from : code.to;
  const std::int64_t shard = code.group.shard_size();
  const bool all = code.decode && !code.sum;
  if (all) {
    if (code.shard != 0 || code.share) return problem("decodes all shards as one");
  } else {
    std::optional<Share> share = code.share;
    if (share) share->stride *= shard;
    if (value.begin != code.shard * shard || value.share != share)
      return problem("codes shard {} as another one", value.begin / shard);
  }
  value.coded = !code.decode;
  if (!code.decode) {
    if (code.sum || plain.elements != shard || coded.elements != message)
      return problem("codes {} elements as {} bytes", plain.elements, coded.elements);
    value.unit = 0;
    return write(coded, std::move(value));
  }
  value.unit = 1;
  if (code.sum != (value.messages_of != 0)) return problem("leaves messages apart");
  const std::int64_t messages = coded.elements / message;
  if (code.sum) {
    if (plain.elements != shard || messages != layout_.extent(CommAxis::shard_outer).ranks)
      return problem("sums {} messages into {} elements", messages, plain.elements);
    if ((value.summed & value.messages_of) != 0) problem("sums what is summed");
    value.summed |= std::exchange(value.messages_of, 0);
  } else {
    if (messages != layout_.shards(group) || plain.elements != padded(group))
      return problem("decodes {} messages into {} elements", messages, plain.elements);
    value.share = std::nullopt;
  }
  write(plain, std::move(value), /*in_place=*/code.sum);
}

}  // namespace dstrain::meaning
