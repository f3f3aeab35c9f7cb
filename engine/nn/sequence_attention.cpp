#include "engine/nn/sequence_attention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "engine/base/error.h"
#include "engine/kernels/attention/sequence_attention.h"

namespace dstrain {

at::Tensor attend_over_ranks(const at::Tensor& qkv, const ops::AttentionShape& shape,
                             SequenceExchange exchange, const ops::Sequences& sequences,
                             const Call& call) {
  Communicator* ranks = call.peers.along(Axis::sequence);
  DSTRAIN_CHECK(ranks != nullptr, "attention over ranks without its communicator");
  if (exchange == SequenceExchange::gather)
    return ops::gathered_attention(qkv, shape, sequences, call.own, *ranks);
  ops::AttentionShape own = shape;
  own.heads /= ranks->size();
  own.kv_heads /= ranks->size();
  own.first_head = shape.first_head + own.heads * ranks->rank();
  own.model_heads = shape.slopes_of();
  return ops::heads_to_rows(ops::attention(ops::rows_to_heads(qkv, shape, *ranks), own, sequences),
                            shape, *ranks);
}

void require_heads(const ops::AttentionShape& shape, SequenceExchange exchange, int ranks) {
  if (exchange == SequenceExchange::gather) return;
  const std::int64_t common = std::gcd(shape.heads, shape.kv_heads);
  if (common % ranks == 0) return;
  std::vector<std::int64_t> fitting;
  for (std::int64_t d = 1; d <= common; ++d) {
    if (common % d == 0) fitting.push_back(d);
  }
  throw Error(ErrorKind::usage,
              fmt::format("parallel.sequence_attention: heads gives each of {} ranks some heads, "
                          "but there are {} query and {} key heads",
                          ranks, shape.heads, shape.kv_heads),
              fmt::format("use parallel.sequence: {}, or parallel.sequence_attention: gather",
                          fmt::join(fitting, ", ")));
}

void add_sequence_exchanges(std::vector<Exchange>& list, const ops::AttentionShape& shape,
                            SequenceExchange exchange, int ranks, std::int64_t rows,
                            int compute_bytes) {
  using enum ExchangePass;
  if (ranks == 1) return;
  const auto add = [&list](CommOp op, std::int64_t elements, int width, ExchangePass pass) {
    list.push_back({.op = op,
                    .axis = Axis::sequence,
                    .bytes = elements * width,
                    .width = width,
                    .pass = pass});
  };
  if (exchange == SequenceExchange::gather) {
    const std::int64_t keys = ranks * rows * 2 * shape.kv_heads * shape.head_dim;
    add(CommOp::all_gather, keys, compute_bytes, forward);
    add(CommOp::all_gather, keys, compute_bytes, backward);
    return add(CommOp::reduce_scatter, keys, sizeof(float), backward);
  }
  const std::int64_t qkv = rows * shape.qkv_width(), out = rows * shape.width();
  add(CommOp::all_to_all, qkv, compute_bytes, forward);
  add(CommOp::all_to_all, out, compute_bytes, forward);
  add(CommOp::all_to_all, out, compute_bytes, backward);
  add(CommOp::all_to_all, qkv, compute_bytes, backward);
}

Workspace sequence_workspace(const ops::AttentionShape& shape, SequenceExchange exchange, int ranks,
                             std::int64_t rows, int compute_bytes) {
  if (ranks == 1) return {};
  // Sent, received and put in order.
  if (exchange == SequenceExchange::heads) {
    const Bytes qkv = rows * shape.qkv_width() * compute_bytes;
    return {.forward = 3 * qkv, .backward = 2 * qkv};
  }
  // Keys and values of all ranks, by rank and in order. Backward, in order, with their gradients in
  // fp32 twice.
  const std::int64_t keys = ranks * rows * 2 * shape.kv_heads * shape.head_dim;
  constexpr Bytes kFloat = sizeof(float);
  return {.forward = 2 * keys * compute_bytes, .backward = keys * (compute_bytes + 2 * kFloat)};
}

}  // namespace dstrain
