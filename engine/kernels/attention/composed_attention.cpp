#include "engine/kernels/attention/composed_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/op_support.h"
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

/// The same in the type of `a`, where a GPU rounds the sums at once.
at::Tensor rounded_product(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cuda() ? at::bmm(a, b) : product(a, b);
}

/// sum [n, r, c] fp32 += a times b.
void add_product(at::Tensor sum, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda() && a.scalar_type() != at::kFloat) {
    at::baddbmm_out(sum, sum, a, b, at::kFloat);
  } else {
    sum.add_(product(a, b));
  }
}

/// Rows of all query heads that share a key head, one behind the other: [B * kv_heads, group * T,
/// d] of heads [B, heads, T, d], dense.
at::Tensor by_key_head(const at::Tensor& heads, std::int64_t kv_heads) {
  return dense(heads.reshape({heads.size(0) * kv_heads, -1, heads.size(3)}));
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
        in_(in) {
    if (!masking.sequences.starts.defined()) return;
    sequence_ = at::searchsorted(masking.sequences.starts, count_to(keys_, in[1]), true,
                                 /*right=*/true);
  }

  /// How many queries at once.
  [[nodiscard]] std::int64_t step() const {
    return composed_queries(samples_ * heads_, queries_, keys_);
  }
  /// The keys that some of these queries may see. Where the places of queries are on the device
  /// alone, all keys.
  [[nodiscard]] Range keys_of(Range queries) const {
    constexpr std::int64_t kAligned = 8;  // rows of scores then are, too
    if (masking_.query_starts.defined() || !masking_.causal) return {0, keys_};
    const std::int64_t behind = keys_ - queries_;
    std::int64_t reach = masking_.window > 0 ? masking_.window : keys_;
    if (sequence_.defined()) reach = std::min(reach, masking_.sequences.longest);
    const std::int64_t first = std::max<std::int64_t>(queries.begin + behind - reach + 1, 0);
    return {first / kAligned * kAligned, queries.end + behind};
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

  /// Products of queries and keys, [B * kv_heads, group * n, keys] fp32.
  [[nodiscard]] at::Tensor scores(Range queries, Range keys) const {
    return product(rows(in_[0], queries), part(in_[1], keys).transpose(1, 2));
  }
  /// What these queries see of these keys.
  [[nodiscard]] kernels::SeenKeys seen(Range queries, Range keys) const {
    return {.places = places_.const_data_ptr<std::int32_t>() + queries.begin,
            .sequences = sequence_.defined() ? sequence_.const_data_ptr<std::int32_t>() : nullptr,
            .queries = queries.size(),
            .first_key = keys.begin,
            .window = masking_.window,
            .causal = masking_.causal};
  }

 private:
  const Masking& masking_;
  std::int64_t samples_, heads_, kv_heads_, queries_, keys_;
  at::Tensor places_, sequence_;
  const Heads& in_;
};

void run(const kernels::CappedSoftmax& args, bool on_gpu) {
  if (!on_gpu) return kernels::reference::capped_softmax(args);
  kernels::cuda::capped_softmax(args, current_stream());
}
void run(const kernels::CappedSoftmaxBackward& args, bool on_gpu) {
  if (!on_gpu) return kernels::reference::capped_softmax_backward(args);
  kernels::cuda::capped_softmax_backward(args, current_stream());
}

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
    const at::Tensor products = scores.scores(own, keys);
    const at::Tensor shares = at::empty(products.sizes(), in[0].options()),
                     sums = at::empty(products.sizes().slice(0, 2), products.options());
    run(kernels::CappedSoftmax{.scores = products.const_data_ptr<float>(),
                               .shares = shares.mutable_data_ptr(),
                               .log_sum_exp = sums.mutable_data_ptr<float>(),
                               .rows = sums.numel(),
                               .keys = keys.size(),
                               .scale = static_cast<float>(masking.scale),
                               .softcap = static_cast<float>(masking.softcap),
                               .seen = scores.seen(own, keys),
                               .dtype = kernel_dtype(in[0])},
        in[0].is_cuda());
    out.narrow(2, first, own.size())
        .copy_(scores.heads(rounded_product(shares, scores.part(in[2], keys)), own.size()));
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
    const at::Tensor products = scores.scores(own, keys);
    const at::Tensor dy = scores.rows(grad, own), y = scores.rows(saved.out, own),
                     value = scores.part(in[2], keys),
                     lse = scores.rows(saved.log_sum_exp.unsqueeze(3), own);
    const at::Tensor d_shares = product(dy, value.transpose(1, 2));
    const at::Tensor shares = at::empty(products.sizes(), in[0].options()),
                     d_scores = at::empty(products.sizes(), in[0].options());
    run(kernels::CappedSoftmaxBackward{.scores = products.const_data_ptr<float>(),
                                       .d_shares = d_shares.const_data_ptr<float>(),
                                       .log_sum_exp = lse.const_data_ptr<float>(),
                                       .out = y.const_data_ptr(),
                                       .d_out = dy.const_data_ptr(),
                                       .shares = shares.mutable_data_ptr(),
                                       .d_scores = d_scores.mutable_data_ptr(),
                                       .rows = lse.numel(),
                                       .keys = keys.size(),
                                       .width = y.size(2),
                                       .scale = static_cast<float>(masking.scale),
                                       .softcap = static_cast<float>(masking.softcap),
                                       .seen = scores.seen(own, keys),
                                       .dtype = kernel_dtype(in[0])},
        in[0].is_cuda());
    const auto of_keys = [&](const at::Tensor& sum) {
      return sum.narrow(1, keys.begin, keys.size());
    };
    add_product(of_keys(d_value), shares.transpose(1, 2), dy);
    d_query.narrow(2, first, own.size())
        .copy_(scores.heads(rounded_product(d_scores, scores.part(in[1], keys)), own.size()));
    add_product(of_keys(d_key), d_scores.transpose(1, 2), scores.rows(in[0], own));
  }
  return {d_query, d_key.view(in[1].sizes()).to(type), d_value.view(in[2].sizes()).to(type)};
}

}  // namespace dstrain::ops
