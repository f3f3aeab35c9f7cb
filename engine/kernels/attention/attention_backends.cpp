#include "engine/kernels/attention/attention_backends.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/attention/composed_attention.h"
#include "engine/kernels/attention/cudnn_attention.h"
#include "engine/kernels/attention/short_attention.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/op_support.h"
#include "engine/mesh/shard.h"

namespace dstrain::ops {
namespace {

/// For backends without shared key and value heads: a copy of them for each query head.
Heads with_own_keys(const Heads& in) {
  const std::int64_t heads = in[0].size(1), kv_heads = in[1].size(1);
  if (heads == kv_heads) return in;
  const auto repeat = [&](const at::Tensor& x) {
    return x.unsqueeze(2)
        .expand({x.size(0), kv_heads, heads / kv_heads, x.size(2), x.size(3)})
        .reshape({x.size(0), heads, x.size(2), x.size(3)});
  };
  return {in[0], repeat(in[1]), repeat(in[2])};
}

Heads with_shared_keys(const Heads& grads, const Heads& in) {
  const std::int64_t heads = in[0].size(1), kv_heads = in[1].size(1);
  if (heads == kv_heads) return grads;
  const auto sum = [&](const at::Tensor& x) {
    return x.reshape({x.size(0), kv_heads, heads / kv_heads, x.size(2), x.size(3)}).sum(2);
  };
  return {grads[0], sum(grads[1]), sum(grads[2])};
}

/// One packed sequence's part of the token axis, or all of it; the CPU takes them one by one.
struct Piece {
  Range queries, keys;
};

std::vector<Piece> pieces_of(const Heads& in, const Masking& masking) {
  if (!masking.sequences.starts.defined())
    return {{.queries = {0, in[0].size(2)}, .keys = {0, in[1].size(2)}}};
  const at::Tensor& of_keys = masking.sequences.starts;
  const at::Tensor& of_queries =
      masking.query_starts.defined() ? masking.query_starts : masking.sequences.starts;
  const auto* keys = of_keys.const_data_ptr<std::int32_t>();
  const auto* queries = of_queries.const_data_ptr<std::int32_t>();
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i + 1 < of_keys.size(0); ++i) {
    if (queries[i + 1] > queries[i])
      pieces.push_back({.queries = {queries[i], queries[i + 1]}, .keys = {keys[i], keys[i + 1]}});
  }
  return pieces;
}

at::Tensor piece_of(const at::Tensor& heads, Range tokens) {
  return heads.narrow(2, tokens.begin, tokens.size());
}

Heads piece_of(const Heads& in, const Piece& piece) {
  return {piece_of(in[0], piece.queries), piece_of(in[1], piece.keys), piece_of(in[2], piece.keys)};
}

/// Some key, the first of which has place 0, lies before the window of the query at `last`.
bool window_hides(std::int64_t last, const Masking& masking) {
  return masking.window > 0 && last >= masking.window;
}

/// Adds far below any score to `biases` [.., queries, keys] for keys before the window.
void hide_before_window(const at::Tensor& biases, const at::Tensor& queries, const at::Tensor& keys,
                        std::int64_t window, double hidden) {
  biases.masked_fill_((queries.unsqueeze(1) - keys.unsqueeze(0)).ge(window), hidden);
}

std::optional<at::Tensor> cpu_biases(const Heads& in, const Masking& masking,
                                     std::int64_t first_query) {
  const bool hides = window_hides(first_query + in[0].size(2) - 1, masking);
  if (!masking.biases && !hides) return std::nullopt;
  const at::Tensor queries = count_to(in[0].size(2), in[0]) + first_query,
                   keys = count_to(in[1].size(2), in[1]);
  const at::Tensor biases = masking.biases ? linear_biases(queries, keys, *masking.biases)
                                           : at::zeros({1, 1, queries.size(0), keys.size(0)},
                                                       in[0].options().dtype(at::kFloat));
  if (hides) hide_before_window(biases, queries, keys, masking.window, -1e30);
  return biases;
}

/// `first_query`: its place, where 0 is that of the first key.
Attended forward_cpu(const Heads& shared, const Masking& masking, std::int64_t first_query) {
  const Heads in = with_own_keys(shared);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      in[0], in[1], in[2], 0.0, masking.causal, cpu_biases(in, masking, first_query),
      masking.scale);
  return {Backend::cpu, out, lse, {}, {}};
}

Heads backward_cpu(const Attended& saved, const at::Tensor& grad, const Heads& shared,
                   const Masking& masking, std::int64_t first_query) {
  const Heads in = with_own_keys(shared);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, in[0], in[1], in[2], saved.out, saved.log_sum_exp, 0.0, masking.causal,
      cpu_biases(in, masking, first_query), masking.scale);
  return with_shared_keys({dq, dk, dv}, shared);
}

/// Heads of such sizes, in the order of tokens.
at::Tensor empty_like_heads(const at::Tensor& heads) {
  return at::empty(heads.transpose(1, 2).sizes(), heads.options()).transpose(1, 2);
}
Heads empty_like_heads(const Heads& in) {
  return {empty_like_heads(in[0]), empty_like_heads(in[1]), empty_like_heads(in[2])};
}

Heads backward_cudnn(const Attended& saved, const at::Tensor& grad, const Heads& in,
                     const Masking& masking) {
  const Heads grads = empty_like_heads(in);
  attend_backward_by_cudnn(saved, grad, in, masking, grads);
  return grads;
}

kernels::HeadsView view_of(const at::Tensor& heads) {
  return {heads.mutable_data_ptr(), heads.stride(0), heads.stride(1), heads.stride(2)};
}

kernels::ShortAttention own_arguments(const Attended& result, const Heads& in,
                                      const Masking& masking) {
  return {.query = view_of(in[0]),
          .key = view_of(in[1]),
          .value = view_of(in[2]),
          .out = view_of(result.out),
          .log_sum_exp = result.log_sum_exp.mutable_data_ptr<float>(),
          .batch = in[0].size(0),
          .heads = in[0].size(1),
          .tokens = in[0].size(2),
          .head_dim = in[0].size(3),
          .scale = static_cast<float>(masking.scale),
          .dtype = kernel_dtype(in[0])};
}

/// Heads of 64 elements forward by cuDNN where it runs and ours do by mma.sync: it takes 0.09 ms
/// for 128 images of 197 tokens, ours 0.13, and by wgmma 0.075. The log-sum-exp of both is the
/// same.
Attended forward_own(const Heads& in, const Masking& masking) {
  if (in[0].size(3) == 64 && kernels::cuda::gpu_limits().flash_attention &&
      !kernels::cuda::short_attention_has_sm90()) {
    if (auto result = unless_refused([&] { return attend_by_cudnn(in, masking); })) {
      result->backend = Backend::own;
      return *result;
    }
  }
  const Attended result{
      .backend = Backend::own,
      .out = empty_like_heads(in[0]),
      .log_sum_exp = at::empty(in[0].sizes().slice(0, 3), in[0].options().dtype(at::kFloat)),
      .seed = {},
      .offset = {}};
  kernels::cuda::short_attention(own_arguments(result, in, masking), current_stream());
  return result;
}

/// Where the sums of these heads' first elements go.
kernels::ShortAttentionBackward::Sums sums_of(const Heads& heads, const at::Tensor& column_sums) {
  if (!column_sums.defined()) return {};
  const auto place = [&](const at::Tensor& part) {
    return column_sums.mutable_data_ptr<float>() + part.storage_offset() -
           heads[0].storage_offset();
  };
  return {.query = place(heads[0]),
          .key = place(heads[1]),
          .value = place(heads[2]),
          .stride = column_sums.size(1)};
}

Heads backward_own(const Attended& saved, const at::Tensor& grad, const Heads& in,
                   const Masking& masking, const Heads& places, const at::Tensor& column_sums) {
  const Heads grads = places[0].defined() ? places : empty_like_heads(in);
  kernels::cuda::short_attention_backward({.forward = own_arguments(saved, in, masking),
                                           .grad = view_of(grad),
                                           .query_grad = view_of(grads[0]),
                                           .key_grad = view_of(grads[1]),
                                           .value_grad = view_of(grads[2]),
                                           .sums = sums_of(grads, column_sums)},
                                          current_stream());
  return grads;
}

/// Flash attention's view of heads: [B, T, heads, head_dim], packed [rows, heads, head_dim].
at::Tensor token_major(const at::Tensor& heads, const Sequences& sequences) {
  const at::Tensor by_token = heads.transpose(1, 2);
  return sequences.starts.defined() ? by_token.squeeze(0) : by_token;
}

at::Tensor head_major(const at::Tensor& tokens, const Sequences& sequences) {
  return (sequences.starts.defined() ? tokens.unsqueeze(0) : tokens).transpose(1, 2);
}

/// What the flash kernels want to know of queries or keys: first rows of packed sequences, and the
/// longest. A limit only; more than one, since for one query and shared keys the library takes
/// another way, on which sequences must not be empty.
struct Extent {
  std::optional<at::Tensor> starts;
  std::int64_t longest;
};

Extent key_extent(const Heads& in, const Masking& masking) {
  const Sequences& sequences = masking.sequences;
  if (!sequences.starts.defined()) return {std::nullopt, in[1].size(2)};
  return {sequences.starts, std::max<std::int64_t>(sequences.longest, 2)};
}

Extent query_extent(const Heads& in, const Masking& masking) {
  if (!masking.sequences.starts.defined()) return {std::nullopt, in[0].size(2)};
  if (!masking.query_starts.defined()) return key_extent(in, masking);
  return {masking.query_starts, std::max<std::int64_t>(masking.longest_query, 2)};
}

/// How many earlier keys a query sees; nothing: all. Its own is the last.
std::optional<std::int64_t> flash_window(const Masking& masking) {
  if (masking.window == 0) return std::nullopt;
  return masking.window - 1;
}
std::optional<std::int64_t> flash_end(const Masking& masking) {
  if (masking.window == 0) return std::nullopt;
  return 0;
}

/// Causal, it counts from the last query and the last key.
Attended forward_flash(const Heads& in, const Masking& masking) {
  const Sequences& sequences = masking.sequences;
  const Extent queries = query_extent(in, masking), keys = key_extent(in, masking);
  auto [out, lse, seed, offset, mask] = at::_flash_attention_forward(
      token_major(in[0], sequences), token_major(in[1], sequences), token_major(in[2], sequences),
      queries.starts, keys.starts, queries.longest, keys.longest, 0.0, masking.causal, false,
      masking.scale, flash_window(masking), flash_end(masking));
  return {Backend::flash, head_major(out, sequences), lse, seed, offset};
}

Heads backward_flash(const Attended& saved, const at::Tensor& grad, const Heads& in,
                     const Masking& masking) {
  const Sequences& sequences = masking.sequences;
  const Extent queries = query_extent(in, masking), keys = key_extent(in, masking);
  auto [dq, dk, dv] = at::_flash_attention_backward(
      token_major(grad, sequences), token_major(in[0], sequences), token_major(in[1], sequences),
      token_major(in[2], sequences), token_major(saved.out, sequences), saved.log_sum_exp,
      queries.starts.value_or(at::Tensor()), keys.starts.value_or(at::Tensor()), queries.longest,
      keys.longest, 0.0, masking.causal, saved.seed, saved.offset, masking.scale,
      flash_window(masking), flash_end(masking));
  return {head_major(dq, sequences), head_major(dk, sequences), head_major(dv, sequences)};
}

bool fewer_queries(const Heads& in) { return in[0].size(2) < in[1].size(2); }

/// Borders between packed sequences, windows and the causal mask of fewer queries than keys, whole,
/// for all heads at once, or with the biases of each head: heads of 16 bits have these in them.
/// Rows start at multiples of 16 elements, as the kernel's loads want. Far below any score stands
/// for minus infinity, which would make nan of the blocks that hold nothing else.
std::optional<at::Tensor> efficient_biases(const Heads& in, const Masking& masking) {
  const bool packed = masking.sequences.starts.defined();
  const bool hides = window_hides(in[1].size(2) - 1, masking);
  if (!masking.biases && !packed && !hides && !fewer_queries(in)) return std::nullopt;
  const std::int64_t tokens = in[1].size(2), row_stride = (tokens + 15) / 16 * 16;
  const at::Tensor keys = count_to(tokens, in[1]), queries = query_places(in, masking);
  at::Tensor biases =
      masking.biases
          ? linear_biases(queries, keys, *masking.biases, row_stride)
          : at::zeros({1, 1, queries.size(0), row_stride}, in[0].options()).narrow(3, 0, tokens);
  const double hidden = biases.scalar_type() == at::kHalf ? -6e4 : -1e30;
  if (packed) {
    const at::Tensor sequence = at::searchsorted(masking.sequences.starts, keys, true, true);
    biases.masked_fill_(sequence.unsqueeze(0).ne(sequence.index_select(0, queries).unsqueeze(1)),
                        hidden);
  }
  if (hides) hide_before_window(biases, queries, keys, masking.window, hidden);
  if (masking.causal && fewer_queries(in))
    biases.masked_fill_(keys.unsqueeze(0).gt(queries.unsqueeze(1)), hidden);
  return biases.expand({in[0].size(0), in[0].size(1), -1, -1});
}

Attended forward_efficient(const Heads& shared, const Masking& masking) {
  const Heads in = with_own_keys(shared);
  auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      in[0], in[1], in[2], efficient_biases(in, masking), true, 0.0,
      masking.causal && !fewer_queries(in), masking.scale);
  return {Backend::efficient, out, lse, seed, offset};
}

Heads backward_efficient(const Attended& saved, const at::Tensor& grad, const Heads& shared,
                         const Masking& masking) {
  const Heads in = with_own_keys(shared);
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, in[0], in[1], in[2], efficient_biases(in, masking).value_or(at::Tensor()), saved.out,
      saved.log_sum_exp, saved.seed, saved.offset, 0.0, {true, true, true, false},
      masking.causal && !fewer_queries(in), masking.scale);
  return with_shared_keys({dq, dk, dv}, shared);
}

/// One call of a library that knows no causal attention of fewer queries than keys.
Attended attend_once(Backend backend, const Heads& in, const Masking& masking,
                     std::int64_t first_query) {
  return backend == Backend::cpu ? forward_cpu(in, masking, first_query)
                                 : attend_by_cudnn(in, masking);
}

Heads attend_once_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                           const Masking& masking, std::int64_t first_query) {
  return saved.backend == Backend::cpu ? backward_cpu(saved, grad, in, masking, first_query)
                                       : backward_cudnn(saved, grad, in, masking);
}

/// Heads whose keys and values are only `keys`.
Heads on_keys(const Heads& in, Range keys) {
  return {in[0], piece_of(in[1], keys), piece_of(in[2], keys)};
}

Masking without_mask(Masking masking) {
  masking.causal = false;
  return masking;
}

/// Attention to the keys of both.
Attended merged(const Attended& a, const Attended& b) {
  const auto by_row = [&](const at::Tensor& lse) {
    return lse.reshape({a.out.size(0), a.out.size(1), a.out.size(2), 1});
  };
  const at::Tensor lse = at::logaddexp(a.log_sum_exp, b.log_sum_exp).contiguous();
  const at::Tensor out =
      a.out * at::exp(by_row(a.log_sum_exp - lse)) + b.out * at::exp(by_row(b.log_sum_exp - lse));
  return {a.backend, out.to(a.out.scalar_type()), lse, a.seed, a.offset};
}

Attended attend_in_parts(Backend backend, const Heads& in, const Masking& masking) {
  const std::int64_t earlier = in[1].size(2) - in[0].size(2);
  if (earlier == 0 || !masking.causal) return attend_once(backend, in, masking, earlier);
  const Attended own = attend_once(backend, on_keys(in, {earlier, in[1].size(2)}), masking, 0);
  return merged(own,
                attend_once(backend, on_keys(in, {0, earlier}), without_mask(masking), earlier));
}

Heads attend_in_parts_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                               const Masking& masking) {
  const std::int64_t earlier = in[1].size(2) - in[0].size(2);
  if (earlier == 0 || !masking.causal)
    return attend_once_backward(saved, grad, in, masking, earlier);
  const Heads own =
      attend_once_backward(saved, grad, on_keys(in, {earlier, in[1].size(2)}), masking, 0);
  const Heads before =
      attend_once_backward(saved, grad, on_keys(in, {0, earlier}), without_mask(masking), earlier);
  const at::Tensor dq = own[0].to(at::kFloat) + before[0];
  return {dq.to(own[0].scalar_type()), at::cat({before[1], own[1]}, 2),
          at::cat({before[2], own[2]}, 2)};
}

/// The CPU's packed sequences, one by one.
Attended attend_by_piece(const Heads& in, const Masking& masking) {
  const std::vector<Piece> pieces = pieces_of(in, masking);
  if (!masking.sequences.starts.defined()) return attend_in_parts(Backend::cpu, in, masking);
  const at::Tensor all_out =
      at::empty(in[0].transpose(1, 2).sizes(), in[0].options()).transpose(1, 2);
  const at::Tensor all_lse =
      at::empty(in[0].sizes().slice(0, 3), in[0].options().dtype(at::kFloat));
  for (const Piece& piece : pieces) {
    const Attended one = attend_in_parts(Backend::cpu, piece_of(in, piece), masking);
    piece_of(all_out, piece.queries).copy_(one.out);
    piece_of(all_lse, piece.queries).copy_(one.log_sum_exp);
  }
  return {Backend::cpu, all_out, all_lse, {}, {}};
}

Heads attend_by_piece_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                               const Masking& masking) {
  if (!masking.sequences.starts.defined())
    return attend_in_parts_backward(saved, grad, in, masking);
  // Keys behind the last query of their sequence have no gradient from here.
  const Heads all = {at::empty_like(in[0]), at::zeros_like(in[1]), at::zeros_like(in[2])};
  for (const Piece& piece : pieces_of(in, masking)) {
    Attended one = saved;
    one.out = piece_of(saved.out, piece.queries);
    one.log_sum_exp = piece_of(saved.log_sum_exp, piece.queries);
    const Heads grads =
        attend_in_parts_backward(one, piece_of(grad, piece.queries), piece_of(in, piece), masking);
    piece_of(all[0], piece.queries).copy_(grads[0]);
    for (std::size_t i = 1; i < all.size(); ++i) piece_of(all[i], piece.keys).copy_(grads[i]);
  }
  return all;
}

bool own_kernels_attend(const AttentionShape& shape, std::int64_t tokens, std::int64_t width,
                        const GpuLimits& limits) {
  return !shape.causal && shape.heads == shape.kv_heads &&
         tokens <= kernels::short_attention_max_tokens(width, limits);
}

}  // namespace

std::int64_t widest_for_cudnn(const GpuLimits& limits) {
  return limits.major == 9 || limits.major == 10 ? 144 : 0;
}

bool attends_by_own_kernels(const AttentionShape& shape, std::int64_t tokens, std::int64_t width) {
  return own_kernels_attend(shape, tokens, width, kernels::cuda::gpu_limits());
}

Backend gpu_backend(at::ScalarType type, const AttentionShape& shape, const HeadsSize& size,
                    bool packed, const GpuLimits& limits) {
  if (shape.softcap > 0) return Backend::composed;
  if (type == at::kFloat) return Backend::efficient;
  if (!packed && own_kernels_attend(shape, size.tokens, size.width, limits)) return Backend::own;
  if (!limits.flash_attention) return Backend::efficient;
  if (shape.window > 0) return Backend::flash;
  return packed || size.width > widest_for_cudnn(limits) ? Backend::flash : Backend::cudnn;
}

Backend backend_for(const at::Tensor& qkv, const AttentionShape& shape, std::int64_t width,
                    bool packed) {
  if (!qkv.is_cuda()) return shape.softcap > 0 ? Backend::composed : Backend::cpu;
  return gpu_backend(qkv.scalar_type(), shape,
                     {.tokens = qkv.size(0) / shape.batch, .width = width}, packed,
                     kernels::cuda::gpu_limits());
}

Attended attend(Backend backend, const Heads& in, const Masking& masking) {
  switch (backend) {
    case Backend::cpu:
      return attend_by_piece(in, masking);
    case Backend::cudnn:
      return attend_in_parts(backend, in, masking);
    case Backend::flash:
      return forward_flash(in, masking);
    case Backend::efficient:
      return forward_efficient(in, masking);
    case Backend::own:
      return forward_own(in, masking);
    case Backend::composed:
      return attend_composed(in, masking);
  }
  throw Error(ErrorKind::internal, "unknown attention backend");
}

at::Tensor room_for_sums(const Attended& saved, const at::Tensor& qkv) {
  if (saved.backend != Backend::own || !kernels::cuda::short_attention_has_sm90()) return {};
  return scratch(qkv, {saved.out.size(0) * kernels::kShortAttentionSums, qkv.size(1)});
}

Heads attend_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                      const Masking& masking, const Heads& places, const at::Tensor& column_sums) {
  if (places[0].defined() && saved.backend == Backend::cudnn) {
    attend_backward_by_cudnn(saved, grad, in, masking, places);
    return places;
  }
  switch (saved.backend) {
    case Backend::cpu:
      return attend_by_piece_backward(saved, grad, in, masking);
    case Backend::cudnn:
      return attend_in_parts_backward(saved, grad, in, masking);
    case Backend::flash:
      return backward_flash(saved, grad, in, masking);
    case Backend::efficient:
      return backward_efficient(saved, grad, in, masking);
    case Backend::own:
      return backward_own(saved, grad, in, masking, places, column_sums);
    case Backend::composed:
      return attend_composed_backward(saved, grad, in, masking);
  }
  throw Error(ErrorKind::internal, "unknown attention backend");
}

}  // namespace dstrain::ops
