#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "engine/base/error.h"
#include "engine/kernels/attention/attention_plan.h"
#include "engine/kernels/attention/sequence_attention.h"
#include "engine/kernels/attention/sequence_order.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// For what goes row by row: one packed sample, whose positions are given.
Sequences row_by_row(const at::Tensor& positions, std::int64_t longest) {
  return {.starts = positions, .longest = longest, .positions = positions};
}

/// Keys and values of all ranks: [B, 2 s, C, 2, kv_heads, head_dim].
at::Tensor gather_keys(const at::Tensor& qkv, const AttentionShape& shape, const CutBatch& cut,
                       Communicator& ranks) {
  const Heads heads = split_heads(qkv, shape, row_by_row({}, 0));
  const auto by_row = [&](const at::Tensor& x) {
    return x.transpose(1, 2).reshape({cut.own_rows(), shape.kv_heads, shape.head_dim});
  };
  const at::Tensor own = at::stack({by_row(heads[1]), by_row(heads[2])}, 1);
  at::Tensor all = at::empty({cut.zigzag.ranks, cut.own_rows(), 2, shape.kv_heads, shape.head_dim},
                             own.options());
  ranks.all_gather(all, own);
  return in_sample_order(all, cut).view(
      {cut.batch, cut.zigzag.parts(), cut.tokens, 2, shape.kv_heads, shape.head_dim});
}

/// Sum over the ranks of such keys' gradients, of the own rows: [M, 2, kv_heads, head_dim].
at::Tensor scatter_gradients(const at::Tensor& all, const CutBatch& cut, Communicator& ranks) {
  const at::Tensor by_rank = in_rank_order(all, cut);
  at::Tensor own = at::empty(by_rank.sizes().slice(1), by_rank.options());
  ranks.reduce_scatter(own, by_rank);
  return own;
}

/// Heads by row as a backend wants them: [B, 2, C, heads, width] and [B, 2 s, C, kv_heads, width].
struct RowHeads {
  at::Tensor query, key, value;
};

RowHeads row_heads(const Plan& plan, Backend backend, const at::Tensor& qkv, const at::Tensor& kv,
                   const Sequences& sequences, const Sequences& rows, const CutBatch& cut) {
  const AttentionShape& shape = plan.shape;
  const auto own = [&](const at::Tensor& heads) {
    return heads.transpose(1, 2).view({cut.batch, 2, cut.tokens, shape.heads, heads.size(3)});
  };
  if (!plan.stretched)
    return {own(split_heads(qkv, shape, rows)[0]), kv.select(3, 0), kv.select(3, 1)};
  const AttentionShape keys_only = {
      .batch = cut.batch, .heads = 0, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
  const Heads keys = stretch_heads(kv.view({cut.all_rows(), keys_only.qkv_width()}), keys_only,
                                   sequences, plan.widths(backend));
  const auto all = [&](const at::Tensor& heads) {
    return heads.transpose(1, 2).view(
        {cut.batch, cut.zigzag.parts(), cut.tokens, shape.kv_heads, heads.size(3)});
  };
  return {own(stretch_heads(qkv, shape, rows, plan.widths(backend))[0]), all(keys[1]),
          all(keys[2])};
}

/// One of the two parts of the own rows, its queries and the keys up to its last one.
struct OwnPart {
  std::int64_t which;  ///< 0 or 1
  std::int64_t place;  ///< among the 2 s parts
};

std::array<OwnPart, 2> own_parts(const CutBatch& cut) {
  const std::array<std::int64_t, 2> places = cut.zigzag.own();
  return {OwnPart{0, places[0]}, OwnPart{1, places[1]}};
}

Heads part_heads(const RowHeads& rows, OwnPart part, const CutBatch& cut, bool packed) {
  const auto heads = [&](const at::Tensor& by_token) {  // [B, tokens, heads, width]
    const at::Tensor samples = packed ? by_token.reshape({1, by_token.size(0) * by_token.size(1),
                                                          by_token.size(2), by_token.size(3)})
                                      : by_token;
    return samples.transpose(1, 2);
  };
  const std::int64_t parts = part.place + 1;
  const auto keys = [&](const at::Tensor& all) {
    return heads(
        all.narrow(1, 0, parts).reshape({cut.batch, parts * cut.tokens, all.size(3), all.size(4)}));
  };
  return {heads(rows.query.select(1, part.which)), keys(rows.key), keys(rows.value)};
}

/// With packed sequences, their first rows among those queries and keys.
Masking part_masking(const Plan& plan, OwnPart part, const CutBatch& cut,
                     const Sequences& sequences) {
  Masking masking = plan.masking({});
  if (!sequences.starts.defined()) return masking;
  const std::int64_t first = part.place * cut.tokens, end = first + cut.tokens;
  const at::Tensor sample = at::floor_divide(sequences.starts, cut.sample());
  const at::Tensor place = sequences.starts - sample * cut.sample();
  masking.query_starts = sample * cut.tokens + (place - first).clamp(0, cut.tokens);
  masking.longest_query = std::min(sequences.longest, cut.tokens);
  masking.sequences = {.starts = sample * end + place.clamp_max(end),
                       .longest = std::min(sequences.longest, end),
                       .positions = {}};
  return masking;
}

/// Places of what is kept for backward.
enum Kept : std::size_t { kQkv, kOut, kStarts, kPositions, kOwnPositions, kFirstPart };
constexpr std::size_t kKeptOfPart = 3;  ///< log-sum-exp, and the backend's two random states

struct GatheredAttention : torch::autograd::Function<GatheredAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Plan& plan,
                            const Sequences& sequences, const at::Tensor& own_positions,
                            Communicator* ranks) {
    const AttentionShape& shape = plan.shape;
    const at::Tensor qkv = dense(input);
    const CutBatch cut = CutBatch::of(qkv.size(0), shape.batch, *ranks);
    const bool packed = sequences.starts.defined();
    const Sequences rows = row_by_row(own_positions, plan.longest);
    if (shape.rope_theta > 0) rotate_heads(qkv, shape, rows);
    const at::Tensor kv = gather_keys(qkv, shape, cut, *ranks);
    RowHeads heads;
    const auto [first, last] = own_parts(cut);
    const Attended late =
        plan.attend(qkv, packed, part_masking(plan, last, cut, sequences), [&](Backend backend) {
          heads = row_heads(plan, backend, qkv, kv, sequences, rows, cut);
          return part_heads(heads, last, cut, packed);
        });
    const Attended early = ops::attend(late.backend, part_heads(heads, first, cut, packed),
                                       part_masking(plan, first, cut, sequences));
    const std::int64_t width = late.out.size(3);
    const at::Tensor out = at::empty({cut.batch, 2, cut.tokens, shape.heads, width}, qkv.options());
    variable_list kept = {qkv, out, sequences.starts, sequences.positions, own_positions};
    for (const Attended* part : {&early, &late}) {
      out.select(1, part == &late ? 1 : 0)
          .copy_(part->out.transpose(1, 2).reshape({cut.batch, cut.tokens, shape.heads, width}));
      kept.insert(kept.end(), {part->log_sum_exp, part->seed, part->offset});
    }
    context->save_for_backward(kept);
    context->saved_data["backend"] = static_cast<std::int64_t>(late.backend);
    keep_ranks(context, ranks);
    plan.save(context);
    if (width == shape.head_dim) return out.view({cut.own_rows(), shape.width()});
    return resize_rows(out, shape.head_dim).view({cut.own_rows(), shape.width()});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Plan plan = Plan::load(context);
    const AttentionShape& shape = plan.shape;
    Communicator& ranks = kept_ranks(context);
    const at::Tensor &qkv = saved[kQkv], &out = saved[kOut];
    const Sequences sequences{
        .starts = saved[kStarts], .longest = plan.longest, .positions = saved[kPositions]};
    const bool packed = sequences.starts.defined();
    const Sequences rows = row_by_row(saved[kOwnPositions], plan.longest);
    const CutBatch cut = CutBatch::of(qkv.size(0), shape.batch, ranks);
    const auto backend = static_cast<Backend>(context->saved_data.at("backend").toInt());
    const at::Tensor kv = gather_keys(qkv, shape, cut, ranks);
    const RowHeads heads = row_heads(plan, backend, qkv, kv, sequences, rows, cut);
    at::Tensor grad = dense(grads[0]).view({cut.batch, 2, cut.tokens, shape.heads, shape.head_dim});
    if (out.size(4) != shape.head_dim) grad = resize_rows(grad, out.size(4));

    const at::Tensor d_query = at::empty(heads.query.sizes(), qkv.options());
    const at::Tensor d_kv = at::zeros(kv.sizes(), qkv.options().dtype(at::kFloat));
    for (const OwnPart part : own_parts(cut)) {
      const std::size_t first = kFirstPart + kKeptOfPart * static_cast<std::size_t>(part.which);
      const auto of_part = [&](const at::Tensor& all) {
        return part_heads({.query = all, .key = heads.key, .value = heads.value}, part, cut,
                          packed);
      };
      const Heads in = of_part(heads.query);
      const Heads found =
          attend_backward({.backend = backend,
                           .out = of_part(out)[0],
                           .log_sum_exp = saved[first],
                           .seed = saved[first + 1],
                           .offset = saved[first + 2]},
                          of_part(grad)[0], in, part_masking(plan, part, cut, sequences));
      const at::Tensor d_own = d_query.select(1, part.which);
      d_own.copy_(found[0].transpose(1, 2).reshape(d_own.sizes()));
      for (std::size_t i = 1; i < found.size(); ++i) {
        const at::Tensor sum = d_kv.narrow(1, 0, part.place + 1).select(3, i == 1 ? 0 : 1);
        sum.add_(found[i].narrow(3, 0, shape.head_dim).transpose(1, 2).reshape(sum.sizes()));
      }
    }
    const at::Tensor d_own =
        scatter_gradients(d_kv, cut, ranks).to(qkv.scalar_type()).unsqueeze(0).transpose(1, 3);
    const at::Tensor d_rows =
        d_query.view({1, cut.own_rows(), shape.heads, d_query.size(4)}).transpose(1, 2);
    const auto of = [&](std::int64_t i) { return d_own.select(2, i); };
    const at::Tensor d_qkv = at::empty_like(qkv);
    pack_heads({d_rows, of(0), of(1)}, d_qkv, shape, rows);
    return {d_qkv, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor gathered_attention(const at::Tensor& qkv, const AttentionShape& shape,
                              const Sequences& sequences, const OwnRows& own, Communicator& ranks) {
  check_attention(qkv, shape, {});
  DSTRAIN_CHECK(shape.causal, "attention over ranks is that of causal models");
  DSTRAIN_CHECK(is_vector(own.positions, qkv.size(0), at::kInt, qkv),
                "attention over ranks needs the position of each own row (int32, beside qkv)");
  const std::int64_t tokens = qkv.size(0) / shape.batch * ranks.size();
  const std::int64_t longest = sequences.starts.defined() ? sequences.longest : tokens;
  return GatheredAttention::apply(qkv, Plan::of(qkv, shape, longest, /*fewer_queries=*/true),
                                  sequences, own.positions, &ranks);
}

}  // namespace dstrain::ops
