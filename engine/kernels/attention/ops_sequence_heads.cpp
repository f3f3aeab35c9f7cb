#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <array>

#include "engine/base/error.h"
#include "engine/kernels/attention/sequence_attention.h"
#include "engine/kernels/attention/sequence_order.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Columns of a row that lie together: a kind of heads, as many for each rank.
using Columns = std::vector<std::int64_t>;

Columns qkv_columns(const AttentionShape& shape) {
  if (shape.interleaved) return {shape.qkv_width()};
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  return {shape.width(), kv_width, kv_width};
}

/// Own rows [M, N] to all rows [B * T, N / s] of the own columns.
at::Tensor columns_of_all(const at::Tensor& x, const Columns& columns, const CutBatch& cut,
                          Communicator& ranks) {
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t width : columns) {
    parts.push_back(x.narrow(1, first, width)
                        .reshape({cut.own_rows(), cut.zigzag.ranks, width / cut.zigzag.ranks})
                        .transpose(0, 1));
    first += width;
  }
  const at::Tensor sent = at::cat(parts, 2).contiguous();  // [s, M, N / s]
  at::Tensor received = at::empty_like(sent);
  ranks.all_to_all(received, sent);
  return in_sample_order(received, cut);
}

/// And back.
at::Tensor rows_of_own(const at::Tensor& x, const Columns& columns, const CutBatch& cut,
                       Communicator& ranks) {
  const at::Tensor sent =
      in_rank_order(x.view({cut.batch, cut.zigzag.parts(), cut.tokens, x.size(1)}), cut);
  const at::Tensor received = at::empty_like(sent);
  at::Tensor into = received;
  ranks.all_to_all(into, sent);
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t width : columns) {
    const std::int64_t part = width / cut.zigzag.ranks;
    parts.push_back(
        received.narrow(2, first, part).transpose(0, 1).reshape({cut.own_rows(), width}));
    first += part;
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 1);
}

/// Which way an exchange goes; backward is the other one.
enum class Way { to_heads, to_rows };

struct ExchangeHeads : torch::autograd::Function<ExchangeHeads> {
  static at::Tensor exchange(Way way, const at::Tensor& x, const Columns& columns,
                             std::int64_t batch, Communicator& ranks) {
    const std::int64_t own = way == Way::to_heads ? x.size(0) : x.size(0) / ranks.size();
    const CutBatch cut = CutBatch::of(own, batch, ranks);
    return way == Way::to_heads ? columns_of_all(x, columns, cut, ranks)
                                : rows_of_own(x, columns, cut, ranks);
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Way way,
                            const Columns& columns, std::int64_t batch, Communicator* ranks) {
    context->saved_data["to_heads"] = way == Way::to_heads;
    context->saved_data["columns"] = columns;
    context->saved_data["batch"] = batch;
    keep_ranks(context, ranks);
    return exchange(way, dense(x), columns, batch, *ranks);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto& data = context->saved_data;
    const Way back = data.at("to_heads").toBool() ? Way::to_rows : Way::to_heads;
    return {exchange(back, dense(grads[0]), data.at("columns").toIntVector(),
                     data.at("batch").toInt(), kept_ranks(context)),
            {},
            {},
            {},
            {}};
  }
};

void check_heads(const AttentionShape& shape, const Communicator& ranks) {
  DSTRAIN_CHECK(shape.heads % ranks.size() == 0 && shape.kv_heads % ranks.size() == 0,
                fmt::format("{} ranks do not divide {} and {} heads", ranks.size(), shape.heads,
                            shape.kv_heads));
}

}  // namespace

at::Tensor rows_to_heads(const at::Tensor& qkv, const AttentionShape& shape, Communicator& ranks) {
  check_heads(shape, ranks);
  DSTRAIN_CHECK(qkv.dim() == 2 && qkv.size(1) == shape.qkv_width(),
                "rows_to_heads: qkv " + shape_of(qkv));
  return ExchangeHeads::apply(qkv, Way::to_heads, qkv_columns(shape), shape.batch, &ranks);
}

at::Tensor heads_to_rows(const at::Tensor& out, const AttentionShape& shape, Communicator& ranks) {
  check_heads(shape, ranks);
  DSTRAIN_CHECK(out.dim() == 2 && out.size(1) * ranks.size() == shape.width(),
                "heads_to_rows: out " + shape_of(out));
  return ExchangeHeads::apply(out, Way::to_rows, Columns{shape.width()}, shape.batch, &ranks);
}

}  // namespace dstrain::ops
