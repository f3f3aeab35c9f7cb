#include "engine/kernels/attention/composed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "engine/mesh/shard.h"

namespace dstrain::ops {

at::Tensor count_to(std::int64_t end, const at::Tensor& like) {
  return at::arange(end, like.options().dtype(at::kInt));
}

at::Tensor query_places(const Heads& in, const Masking& masking) {
  const std::int64_t queries = in[0].size(2), keys = in[1].size(2);
  const at::Tensor rows = count_to(queries, in[0]);
  if (!masking.query_starts.defined()) return rows + (keys - queries);
  const at::Tensor next = at::searchsorted(masking.query_starts, rows, true, /*right=*/true);
  const at::Tensor behind = masking.sequences.starts - masking.query_starts;
  return rows + behind.index_select(0, next);
}

namespace {

/// a [n, r, k] times b [n, k, c] in fp32.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) return at::bmm(a, b);
  if (a.is_cuda()) return at::bmm(a, b, at::kFloat);
  return at::bmm(a.to(at::kFloat), b.to(at::kFloat));
}

/// Rows of all query heads that share a key head, one behind the other: [B * kv_heads, group * T,
/// d] of heads [B, heads, T, d].
at::Tensor by_key_head(const at::Tensor& heads, std::int64_t kv_heads) {
  return heads.reshape({heads.size(0) * kv_heads, -1, heads.size(3)});
}

/// What all chunks of queries share.
class Scores {
 public:
  Scores(const Heads& in, const Masking& masking)
      : masking_(masking),
        samples_(in[0].size(0)),
        heads_(in[0].size(1)),
        kv_heads_(in[1].size(1)),
        queries_(in[0].size(2)),
        keys_(in[1].size(2)),
        places_(query_places(in, masking)),
        key_places_(count_to(keys_, in[1])),
        in_(in) {
    if (!masking.sequences.starts.defined()) return;
    sequence_ = at::searchsorted(masking.sequences.starts, key_places_, true, /*right=*/true);
  }

  /// How many queries at once.
  [[nodiscard]] std::int64_t step() const {
    return composed_queries(samples_ * heads_, queries_, keys_);
  }
  /// The keys that some of these queries may see. Where the places of queries are on the device
  /// alone, all keys.
  [[nodiscard]] Range keys_of(Range queries) const {
    if (masking_.query_starts.defined() || !masking_.causal) return {0, keys_};
    const std::int64_t behind = keys_ - queries_;
    std::int64_t reach = masking_.window > 0 ? masking_.window : keys_;
    if (sequence_.defined()) reach = std::min(reach, masking_.sequences.longest);
    return {std::max<std::int64_t>(queries.begin + behind - reach + 1, 0), queries.end + behind};
  }
  /// Queries, or what is like them, [B * kv_heads, group * n, d].
  [[nodiscard]] at::Tensor rows(const at::Tensor& heads, Range queries) const {
    return by_key_head(heads.narrow(2, queries.begin, queries.size()), kv_heads_);
  }
  [[nodiscard]] at::Tensor part(const at::Tensor& heads, Range keys) const {
    return by_key_head(heads.narrow(2, keys.begin, keys.size()), kv_heads_);
  }
  /// Back to [B, heads, n, d].
  [[nodiscard]] at::Tensor heads(const at::Tensor& rows, std::int64_t n) const {
    return rows.reshape({samples_, heads_, n, -1});
  }

  /// tanh(scaled score / cap), or the scaled score where there is no cap, [B * kv_heads, group * n,
  /// keys] fp32.
  [[nodiscard]] at::Tensor bent(Range queries, Range keys) const {
    const double factor = masking_.softcap > 0 ? masking_.scale / masking_.softcap : masking_.scale;
    at::Tensor scores =
        product(rows(in_[0], queries), part(in_[1], keys).transpose(1, 2)).mul_(factor);
    return masking_.softcap > 0 ? scores.tanh_() : scores;
  }
  /// The scores, minus infinity where a query sees no key.
  [[nodiscard]] at::Tensor masked(const at::Tensor& bent, Range queries, Range keys) const {
    at::Tensor scores = masking_.softcap > 0 ? bent * masking_.softcap : bent.clone();
    if (const auto hidden = hides(queries, keys)) {
      at::Tensor by_query = scores.view({scores.size(0), -1, queries.size(), keys.size()});
      by_query.masked_fill_(*hidden, -std::numeric_limits<float>::infinity());
    }
    return scores;
  }

 private:
  /// [queries, keys], true where a query does not see a key.
  [[nodiscard]] std::optional<at::Tensor> hides(Range queries, Range keys) const {
    if (!masking_.causal && !sequence_.defined()) return std::nullopt;
    const at::Tensor own = places_.narrow(0, queries.begin, queries.size()),
                     key = key_places_.narrow(0, keys.begin, keys.size()).unsqueeze(0);
    const at::Tensor query = own.unsqueeze(1);
    at::Tensor hidden = at::zeros({queries.size(), keys.size()}, key.options().dtype(at::kBool));
    if (masking_.causal) hidden.logical_or_(key.gt(query));
    if (masking_.window > 0) hidden.logical_or_((query - key).ge(masking_.window));
    if (sequence_.defined())
      hidden.logical_or_(sequence_.narrow(0, keys.begin, keys.size())
                             .unsqueeze(0)
                             .ne(sequence_.index_select(0, own).unsqueeze(1)));
    return hidden;
  }

  const Masking& masking_;
  std::int64_t samples_, heads_, kv_heads_, queries_, keys_;
  at::Tensor places_, key_places_, sequence_;
  const Heads& in_;
};

/// Heads in the order of tokens.
at::Tensor empty_by_token(const at::Tensor& like, std::int64_t width) {
  return at::empty({like.size(0), like.size(2), like.size(1), width}, like.options())
      .transpose(1, 2);
}

}  // namespace

std::int64_t composed_queries(std::int64_t heads, std::int64_t queries, std::int64_t keys) {
  constexpr std::int64_t kScores = 1 << 25;  // 128 MiB in fp32
  return std::clamp<std::int64_t>(kScores / std::max<std::int64_t>(heads * keys, 1), 1, queries);
}

Attended attend_composed(const Heads& in, const Masking& masking) {
  const Scores scores(in, masking);
  const std::int64_t queries = in[0].size(2), step = scores.step();
  const at::Tensor out = empty_by_token(in[0], in[2].size(3));
  const at::Tensor lse = at::empty(in[0].sizes().slice(0, 3), in[0].options().dtype(at::kFloat));
  for (std::int64_t first = 0; first < queries; first += step) {
    const Range own{first, std::min(first + step, queries)}, keys = scores.keys_of(own);
    const at::Tensor masked = scores.masked(scores.bent(own, keys), own, keys);
    const at::Tensor sums = at::logsumexp(masked, 2, /*keepdim=*/true);
    const at::Tensor shares = (masked - sums).exp_().to(in[0].scalar_type());
    out.narrow(2, first, own.size())
        .copy_(scores.heads(product(shares, scores.part(in[2], keys)), own.size()));
    lse.narrow(2, first, own.size()).copy_(scores.heads(sums, own.size()).squeeze(3));
  }
  return {.backend = Backend::composed, .out = out, .log_sum_exp = lse, .seed = {}, .offset = {}};
}

Heads attend_composed_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                               const Masking& masking) {
  const Scores scores(in, masking);
  const std::int64_t queries = in[0].size(2), step = scores.step();
  const auto type = in[0].scalar_type();
  const auto sums_of = [&](const at::Tensor& heads) {
    return at::zeros({heads.size(0) * heads.size(1), heads.size(2), heads.size(3)},
                     heads.options().dtype(at::kFloat));
  };
  const at::Tensor d_query = empty_by_token(in[0], in[0].size(3)), d_key = sums_of(in[1]),
                   d_value = sums_of(in[2]);
  for (std::int64_t first = 0; first < queries; first += step) {
    const Range own{first, std::min(first + step, queries)}, keys = scores.keys_of(own);
    const at::Tensor bent = scores.bent(own, keys);
    const at::Tensor dy = scores.rows(grad, own), value = scores.part(in[2], keys);
    const at::Tensor lse = scores.rows(saved.log_sum_exp.unsqueeze(3), own);
    const at::Tensor shares = scores.masked(bent, own, keys).sub_(lse).exp_();
    const auto add = [&](const at::Tensor& sum, const at::Tensor& part) {
      sum.narrow(1, keys.begin, keys.size()).add_(part);
    };
    add(d_value, product(shares.to(type).transpose(1, 2), dy));
    const at::Tensor along =
        (dy.to(at::kFloat) * scores.rows(saved.out, own)).sum(2, /*keepdim=*/true);
    at::Tensor d_scores = product(dy, value.transpose(1, 2)).sub_(along).mul_(shares);
    if (masking.softcap > 0) d_scores = at::tanh_backward(d_scores, bent);
    const at::Tensor by_type = d_scores.mul_(masking.scale).to(type);
    d_query.narrow(2, first, own.size())
        .copy_(scores.heads(product(by_type, scores.part(in[1], keys)), own.size()));
    add(d_key, product(by_type.transpose(1, 2), scores.rows(in[0], own)));
  }
  return {d_query, d_key.view(in[1].sizes()).to(type), d_value.view(in[2].sizes()).to(type)};
}

}  // namespace dstrain::ops
