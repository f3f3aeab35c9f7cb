#include "engine/kernels/attention/attention_backends.h"

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/base/error.h"

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

at::Tensor places(const Heads& in) {
  return at::arange(in[0].size(2), in[0].options().dtype(at::kInt));
}

/// One packed sequence's part of the token axis; the CPU takes them one by one.
struct Piece {
  std::int64_t first = 0, length = 0;
};

std::vector<Piece> pieces_of(const Sequences& sequences) {
  const auto* starts = sequences.starts.const_data_ptr<std::int32_t>();
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i + 1 < sequences.starts.size(0); ++i) {
    if (starts[i + 1] > starts[i]) pieces.push_back({starts[i], starts[i + 1] - starts[i]});
  }
  return pieces;
}

at::Tensor piece_of(const at::Tensor& heads, Piece piece) {
  return heads.narrow(2, piece.first, piece.length);
}

Heads piece_of(const Heads& in, Piece piece) {
  return {piece_of(in[0], piece), piece_of(in[1], piece), piece_of(in[2], piece)};
}

std::optional<at::Tensor> cpu_biases(const Heads& in, const Masking& masking) {
  if (!masking.biased) return std::nullopt;
  return linear_biases(places(in), masking.slopes);
}

Attended forward_cpu(const Heads& shared, const Masking& masking) {
  const Heads in = with_own_keys(shared);
  const auto run = [&](const Heads& part) {
    return at::_scaled_dot_product_flash_attention_for_cpu(
        part[0], part[1], part[2], 0.0, masking.causal, cpu_biases(part, masking), masking.scale);
  };
  if (!masking.sequences.starts.defined()) {
    auto [out, lse] = run(in);
    return {Backend::cpu, out, lse, {}, {}};
  }
  const at::Tensor all_out =
      at::empty(in[0].transpose(1, 2).sizes(), in[0].options()).transpose(1, 2);
  const at::Tensor all_lse =
      at::empty(in[0].sizes().slice(0, 3), in[0].options().dtype(at::kFloat));
  for (const Piece piece : pieces_of(masking.sequences)) {
    auto [out, lse] = run(piece_of(in, piece));
    piece_of(all_out, piece).copy_(out);
    piece_of(all_lse, piece).copy_(lse);
  }
  return {Backend::cpu, all_out, all_lse, {}, {}};
}

Heads backward_cpu(const Attended& saved, const at::Tensor& grad, const Heads& shared,
                   const Masking& masking) {
  const Heads in = with_own_keys(shared);
  const auto run = [&](const at::Tensor& d_out, const Heads& part, const at::Tensor& out,
                       const at::Tensor& lse) -> Heads {
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, part[0], part[1], part[2], out, lse, 0.0, masking.causal, cpu_biases(part, masking),
        masking.scale);
    return {dq, dk, dv};
  };
  if (!masking.sequences.starts.defined()) {
    return with_shared_keys(run(grad, in, saved.out, saved.log_sum_exp), shared);
  }
  const Heads all = {at::empty_like(in[0]), at::empty_like(in[1]), at::empty_like(in[2])};
  for (const Piece piece : pieces_of(masking.sequences)) {
    const Heads grads = run(piece_of(grad, piece), piece_of(in, piece), piece_of(saved.out, piece),
                            piece_of(saved.log_sum_exp, piece));
    for (std::size_t i = 0; i < grads.size(); ++i) piece_of(all[i], piece).copy_(grads[i]);
  }
  return with_shared_keys(all, shared);
}

Attended forward_cudnn(const Heads& in, const Masking& masking) {
  auto [out, lse, seq_q, seq_k, max_q, max_k, seed, offset, mask] =
      at::_scaled_dot_product_cudnn_attention(in[0], in[1], in[2], std::nullopt, true, 0.0,
                                              masking.causal, false, masking.scale);
  return {Backend::cudnn, out, lse, seed, offset};
}

Heads backward_cudnn(const Attended& saved, const at::Tensor& grad, const Heads& in,
                     const Masking& masking) {
  const at::Tensor none;
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      grad, in[0], in[1], in[2], saved.out, saved.log_sum_exp, saved.seed, saved.offset, none, none,
      none, in[0].size(2), in[1].size(2), 0.0, masking.causal, masking.scale);
  return {dq, dk, dv};
}

/// Flash attention's view of heads: [B, T, heads, head_dim], packed [rows, heads, head_dim].
at::Tensor token_major(const at::Tensor& heads, const Sequences& sequences) {
  const at::Tensor by_token = heads.transpose(1, 2);
  return sequences.starts.defined() ? by_token.squeeze(0) : by_token;
}

at::Tensor head_major(const at::Tensor& tokens, const Sequences& sequences) {
  return (sequences.starts.defined() ? tokens.unsqueeze(0) : tokens).transpose(1, 2);
}

/// A limit only; more than one, since for one query and shared keys the library takes another way,
/// on which sequences must not be empty.
std::int64_t longest_of(const Heads& in, const Sequences& sequences) {
  return sequences.starts.defined() ? std::max<std::int64_t>(sequences.longest, 2) : in[0].size(2);
}

Attended forward_flash(const Heads& in, const Masking& masking) {
  const Sequences& sequences = masking.sequences;
  const auto starts = sequences.starts.defined() ? std::optional(sequences.starts) : std::nullopt;
  const std::int64_t longest = longest_of(in, sequences);
  auto [out, lse, seed, offset, mask] = at::_flash_attention_forward(
      token_major(in[0], sequences), token_major(in[1], sequences), token_major(in[2], sequences),
      starts, starts, longest, longest, 0.0, masking.causal, false, masking.scale);
  return {Backend::flash, head_major(out, sequences), lse, seed, offset};
}

Heads backward_flash(const Attended& saved, const at::Tensor& grad, const Heads& in,
                     const Masking& masking) {
  const Sequences& sequences = masking.sequences;
  const std::int64_t longest = longest_of(in, sequences);
  auto [dq, dk, dv] = at::_flash_attention_backward(
      token_major(grad, sequences), token_major(in[0], sequences), token_major(in[1], sequences),
      token_major(in[2], sequences), token_major(saved.out, sequences), saved.log_sum_exp,
      sequences.starts, sequences.starts, longest, longest, 0.0, masking.causal, saved.seed,
      saved.offset, masking.scale);
  return {head_major(dq, sequences), head_major(dk, sequences), head_major(dv, sequences)};
}

/// Biases and borders between packed sequences, whole: for tests of modest length. Rows start at
/// multiples of 64 bytes, as the kernel's loads want. Far below any score stands for minus
/// infinity, which would make nan of the blocks that hold nothing else.
std::optional<at::Tensor> efficient_biases(const Heads& in, const Masking& masking) {
  const bool packed = masking.sequences.starts.defined();
  if (!masking.biased && !packed) return std::nullopt;
  const std::int64_t tokens = in[0].size(2), row_stride = (tokens + 15) / 16 * 16;
  const at::Tensor positions = packed ? masking.sequences.positions : places(in);
  at::Tensor biases = linear_biases(positions, masking.slopes, row_stride);
  if (!masking.biased) biases.zero_();
  if (packed) {
    const at::Tensor starts = places(in) - positions;
    biases.masked_fill_(starts.unsqueeze(0).ne(starts.unsqueeze(1)), -1e30);
  }
  return biases.expand({in[0].size(0), -1, -1, -1});
}

Attended forward_efficient(const Heads& shared, const Masking& masking) {
  const Heads in = with_own_keys(shared);
  auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      in[0], in[1], in[2], efficient_biases(in, masking), true, 0.0, masking.causal, masking.scale);
  return {Backend::efficient, out, lse, seed, offset};
}

Heads backward_efficient(const Attended& saved, const at::Tensor& grad, const Heads& shared,
                         const Masking& masking) {
  const Heads in = with_own_keys(shared);
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, in[0], in[1], in[2], efficient_biases(in, masking).value_or(at::Tensor()), saved.out,
      saved.log_sum_exp, saved.seed, saved.offset, 0.0, {true, true, true, false}, masking.causal,
      masking.scale);
  return with_shared_keys({dq, dk, dv}, shared);
}

/// cuDNN was measured with heads up to 144 wide on Hopper, whose kernels are others than Ampere's.
std::int64_t widest_for_cudnn() {
  return at::cuda::getCurrentDeviceProperties()->major >= 9 ? 144 : 128;
}

}  // namespace

Backend backend_for(const at::Tensor& qkv, std::int64_t width, bool packed) {
  if (!qkv.is_cuda()) return Backend::cpu;
  if (qkv.scalar_type() == at::kFloat) return Backend::efficient;
  return packed || width > widest_for_cudnn() ? Backend::flash : Backend::cudnn;
}

Attended attend(Backend backend, const Heads& in, const Masking& masking) {
  switch (backend) {
    case Backend::cpu:
      return forward_cpu(in, masking);
    case Backend::cudnn:
      return forward_cudnn(in, masking);
    case Backend::flash:
      return forward_flash(in, masking);
    case Backend::efficient:
      return forward_efficient(in, masking);
  }
  throw Error(ErrorKind::internal, "unknown attention backend");
}

Heads attend_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                      const Masking& masking) {
  switch (saved.backend) {
    case Backend::cpu:
      return backward_cpu(saved, grad, in, masking);
    case Backend::cudnn:
      return backward_cudnn(saved, grad, in, masking);
    case Backend::flash:
      return backward_flash(saved, grad, in, masking);
    case Backend::efficient:
      return backward_efficient(saved, grad, in, masking);
  }
  throw Error(ErrorKind::internal, "unknown attention backend");
}

}  // namespace dstrain::ops
