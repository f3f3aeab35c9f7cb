#pragma once

#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>

#include <vector>

#include "test/kernels/plain_attention.h"
#include "test/support/bounded.h"

/// Softmax attention, forward and backward, written out with what rounding may do to it on the CPU:
/// by blocks of keys as flash attention (Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4).
namespace dstrain::test {

struct AttentionBounds {
  Bounded out, grad;  ///< as rows [tokens, width] and [tokens, qkv_width]
};

/// Keys of one block; queries of one block may be as few.
constexpr std::int64_t kAttentionBlock = 32;

/// x [H, T, d] turned by its position's angles, or back (sign = -1), with tables rounded to fp32.
[[nodiscard]] inline Bounded turned(const Bounded& x, double theta, double sign,
                                    at::ScalarType dtype) {
  const std::int64_t tokens = x.value.size(1), half = x.value.size(2) / 2;
  const at::Tensor rates = at::pow(
      at::Scalar(theta), at::arange(half, at::kDouble) * (-1.0 / static_cast<double>(half)));
  const at::Tensor angles = at::arange(tokens, at::kDouble).unsqueeze(1) * rates;
  const Bounded cosine = rounded(Bounded(angles.cos())),
                sine = rounded(Bounded(angles.sin() * sign));
  const Bounded low = narrowed(x, 2, 0, half), high = narrowed(x, 2, half, half);
  return rounded(joined(low * cosine - high * sine, high * cosine + low * sine, 2), dtype);
}

/// A product of batches whose result may go through `dtype` once for each of `blocks`.
[[nodiscard]] inline Bounded blockwise(const Bounded& a, const Bounded& b, at::ScalarType dtype,
                                       std::int64_t blocks) {
  Bounded all = product(a, b);
  all.error =
      all.error + at::matmul(a.reach(), b.reach()) * gamma(blocks + 1, unit_roundoff(dtype));
  return rounded(all, dtype);
}

/// How the scores' linear biases are added.
enum class Biases { none, to_scores, in_heads };

/// One head's part of the gradient summed over the query heads that share it.
[[nodiscard]] inline Bounded over_sharers(const Bounded& x, std::int64_t kv_heads,
                                          at::ScalarType dtype) {
  const std::int64_t sharers = x.value.size(0) / kv_heads;
  if (sharers == 1) return x;
  const Bounded grouped = viewed(x, [&](const at::Tensor& t) {
    return t.reshape({kv_heads, sharers, t.size(1), t.size(2)});
  });
  return rounded(viewed(sum(grouped, 1), [](const at::Tensor& t) { return t.squeeze(1); }), dtype);
}

/// tanh(x), whose derivative is at most one.
[[nodiscard]] inline Bounded bent(const Bounded& x) {
  const at::Tensor value = at::tanh(x.value);
  return {value, x.error + value.abs() * 0x1p-21};
}

/// Scores [H, T, T], before the mask and the cap: q k^T times the scale + slope (key - query).
[[nodiscard]] inline Bounded scores_of(const Bounded& q, const Bounded& k, double scale,
                                       Biases biases, at::ScalarType dtype) {
  const std::int64_t heads = q.value.size(0), tokens = q.value.size(1), dim = q.value.size(2);
  Bounded scores = rounded(product(q, transposed(k)), dtype) * scale;
  if (biases == Biases::none) return scores;
  const at::Tensor places = at::arange(tokens, at::kDouble),
                   slopes = plain_slopes(heads).view({heads, 1, 1});
  const Bounded away(places.unsqueeze(0) - places.unsqueeze(1));
  if (biases == Biases::to_scores) return scores + rounded(Bounded(slopes)) * away;
  // Four more elements of the heads: slopes to 2^-17 (two roundings to 16 bits), their products
  // with positions summed together with those of q and k.
  const at::Tensor bias = slopes * places, largest = bias.expand({heads, tokens, tokens});
  const Bounded together = scores + Bounded(slopes * away.value);
  const double u = dtype == at::kFloat ? 0x1p-24 : 0x1p-17;
  return {together.value,
          together.error + largest * (u + gamma(dim + 6)) +
              at::matmul(q.reach(), k.reach().transpose(1, 2)) * (scale * gamma(dim + 6))};
}

/// One sequence: rows [T, qkv_width] and the gradient of its output [T, width].
[[nodiscard]] inline AttentionBounds sequence_bounds(const Bounded& rows, const at::Tensor& dy,
                                                     const ops::AttentionShape& shape,
                                                     Biases biases, at::ScalarType dtype) {
  const std::int64_t tokens = rows.value.size(0), heads = shape.heads, kv_heads = shape.kv_heads,
                     dim = shape.head_dim, blocks = tokens / kAttentionBlock + 1,
                     sharers = heads / kv_heads;
  const Bounded split = viewed(rows, [&](const at::Tensor& t) {
    if (!shape.interleaved) return t.view({tokens, heads + 2 * kv_heads, dim}).transpose(0, 1);
    return t.view({tokens, heads, 3, dim}).permute({2, 1, 0, 3}).reshape({-1, tokens, dim});
  });
  Bounded q = narrowed(split, 0, 0, heads), k = narrowed(split, 0, heads, kv_heads);
  Bounded v = narrowed(split, 0, heads + kv_heads, kv_heads);
  // The first elements of a head, or all, turn.
  const auto turned_heads = [&](const Bounded& x, double sign) {
    const std::int64_t first = shape.turning();
    const Bounded part = turned(narrowed(x, 2, 0, first), shape.rope_theta, sign, dtype);
    return first == dim ? part : joined(part, narrowed(x, 2, first, dim - first), 2);
  };
  if (shape.rope_theta > 0) {
    q = turned_heads(q, 1);
    k = turned_heads(k, 1);
  }
  const auto repeat = [&](const at::Tensor& t) { return t.repeat_interleave(sharers, 0); };
  k = viewed(k, repeat), v = viewed(v, repeat);

  const double scale = shape.score_scale();
  Bounded scores = scores_of(q, k, scale, biases, dtype), slopes(at::ones_like(scores.value));
  if (shape.softcap > 0) {
    const Bounded found = bent(scores * (1 / shape.softcap));
    scores = found * shape.softcap;
    slopes = slopes - found * found;
  }
  at::Tensor seen = at::ones({tokens, tokens}, at::kDouble);
  if (shape.causal) seen = seen.tril();
  if (shape.window > 0) seen = seen.triu(1 - shape.window);
  const auto masked = [&](const Bounded& x) { return Bounded(x.value * seen, x.error * seen); };
  const at::Tensor top =
      scores.value.masked_fill(seen.eq(0), -std::numeric_limits<double>::infinity()).amax(2, true);
  scores.value = at::minimum(scores.value, top);  // what is masked must not overflow
  // Both the sum and the product with v are multiplied by exp(old top - new top) at each block.
  Bounded weights =
      masked(exp({scores.value - top, scores.error + (scores.value - top).abs() * 0x1p-24}));
  weights.error =
      weights.error + weights.value * (static_cast<double>(blocks) * (kExpError + gamma(3)));
  const Bounded total = sum(weights, 2);
  const Bounded narrow = rounded(weights, dtype);
  const Bounded out = rounded(blockwise(narrow, v, dtype, blocks) / total, dtype);

  const Bounded log_sum = Bounded(top) + log(total);
  const Bounded again = masked(exp(scores - log_sum)), narrow_again = rounded(again, dtype);
  const Bounded d_out(dy.view({tokens, heads, dim}).transpose(0, 1));
  const Bounded dv = blockwise(transposed(narrow_again), d_out, dtype, blocks);
  const Bounded d_weights = rounded(product(d_out, transposed(v)), dtype);
  const Bounded d_scores = rounded(again * (d_weights - sum(d_out * out, 2)) * slopes, dtype);
  Bounded dq = rounded(blockwise(d_scores, k, dtype, blocks) * scale, dtype),
          dk = rounded(blockwise(transposed(d_scores), q, dtype, blocks) * scale, dtype);
  dk = over_sharers(dk, kv_heads, dtype);
  if (shape.rope_theta > 0) {
    dq = turned_heads(dq, -1);
    dk = turned_heads(dk, -1);
  }
  const Bounded all = joined(joined(dq, dk, 0), over_sharers(dv, kv_heads, dtype), 0);
  return {
      .out = viewed(out,
                    [&](const at::Tensor& t) {
                      return t.transpose(0, 1).reshape({tokens, shape.width()});
                    }),
      .grad = viewed(all, [&](const at::Tensor& t) {
        if (!shape.interleaved) return t.transpose(0, 1).reshape(rows.value.sizes());
        return t.view({3, heads, tokens, dim}).permute({2, 1, 0, 3}).reshape(rows.value.sizes());
      })};
}

/// Every sequence of a batch.
[[nodiscard]] inline AttentionBounds attention_bounds(const at::Tensor& qkv, const at::Tensor& dy,
                                                      const ops::AttentionShape& shape,
                                                      const std::vector<std::int64_t>& lengths,
                                                      bool stretched = false) {
  const Biases biases = !shape.alibi ? Biases::none
                        : stretched  ? Biases::in_heads
                                     : Biases::to_scores;
  std::vector<at::Tensor> parts[4];
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    const AttentionBounds one =
        sequence_bounds(qkv.narrow(0, first, length), dy.narrow(0, first, length), shape, biases,
                        qkv.scalar_type());
    const at::Tensor all[] = {one.out.value, one.out.error, one.grad.value, one.grad.error};
    for (int i = 0; i < 4; ++i) parts[i].push_back(all[i]);
    first += length;
  }
  return {.out = {at::cat(parts[0]), at::cat(parts[1])},
          .grad = {at::cat(parts[2]), at::cat(parts[3])}};
}

}  // namespace dstrain::test
