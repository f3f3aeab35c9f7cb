#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <array>

#include "engine/base/error.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Heads =
    std::array<at::Tensor, 3>;  ///< query, key, value or their gradients, each [B, H, T, head_dim]

enum class Backend : std::int64_t { cpu, cudnn, flash, efficient };

/// Views of qkv [B * T, 3 * D], no copy.
Heads split_heads(const at::Tensor& qkv, std::int64_t batch, std::int64_t heads) {
  const std::int64_t tokens = qkv.size(0) / batch, head_dim = qkv.size(1) / 3 / heads;
  const at::Tensor all = qkv.view({batch, tokens, 3, heads, head_dim}).permute({2, 0, 3, 1, 4});
  return {all.select(0, 0), all.select(0, 1), all.select(0, 2)};
}

/// What forward hands to backward; `state` is whatever the backend needs: log-sum-exp and two
/// random states.
struct Attended {
  Backend backend = Backend::cpu;
  at::Tensor out;
  at::Tensor log_sum_exp, seed, offset;
  std::int64_t max_q = 0, max_k = 0;
};

Attended forward_cudnn(const Heads& in) {
  auto [out, lse, seq_q, seq_k, max_q, max_k, seed, offset, mask] =
      at::_scaled_dot_product_cudnn_attention(in[0], in[1], in[2], std::nullopt, true);
  return {Backend::cudnn,
          out,
          lse,
          seed,
          offset,
          max_q.guard_int(__FILE__, __LINE__),
          max_k.guard_int(__FILE__, __LINE__)};
}

Attended forward_flash(const Heads& in) {
  auto [out, lse, seq_q, seq_k, max_q, max_k, seed, offset, mask] =
      at::_scaled_dot_product_flash_attention(in[0], in[1], in[2]);
  return {Backend::flash,
          out,
          lse,
          seed,
          offset,
          max_q.guard_int(__FILE__, __LINE__),
          max_k.guard_int(__FILE__, __LINE__)};
}

Attended forward_on(const Heads& in) {
  if (!in[0].is_cuda()) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2]);
    return {Backend::cpu, out, lse, {}, {}};
  }
  const std::int64_t head_dim = in[0].size(3);
  if (head_dim % 8 != 0) {
    throw Error(ErrorKind::internal, fmt::format("attention with {} elements a head", head_dim),
                "a multiple of 8 works on a GPU");
  }
  if (in[0].scalar_type() == at::kFloat) {
    auto [out, lse, seed, offset] =
        at::_scaled_dot_product_efficient_attention(in[0], in[1], in[2], std::nullopt, true);
    return {Backend::efficient, out, lse, seed, offset};
  }
  if (head_dim > 128) return forward_flash(in);
  try {
    return forward_cudnn(in);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {  // cuDNN has no kernel for this device or shape
    return forward_flash(in);
  }
}

Heads backward_on(const Attended& saved, const at::Tensor& grad, const Heads& in) {
  const at::Tensor none;
  switch (saved.backend) {
    case Backend::cpu: {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad, in[0], in[1], in[2], saved.out, saved.log_sum_exp, 0.0, false);
      return {dq, dk, dv};
    }
    case Backend::cudnn: {
      auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
          grad, in[0], in[1], in[2], saved.out, saved.log_sum_exp, saved.seed, saved.offset, none,
          none, none, saved.max_q, saved.max_k, 0.0, false);
      return {dq, dk, dv};
    }
    case Backend::flash: {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
          grad, in[0], in[1], in[2], saved.out, saved.log_sum_exp, none, none, saved.max_q,
          saved.max_k, 0.0, false, saved.seed, saved.offset);
      return {dq, dk, dv};
    }
    case Backend::efficient: {
      auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
          grad, in[0], in[1], in[2], none, saved.out, saved.log_sum_exp, saved.seed, saved.offset,
          0.0, {true, true, true, false});
      return {dq, dk, dv};
    }
  }
  throw Error(ErrorKind::internal, "unknown attention backend");
}

/// The three gradients as one tensor like qkv.
at::Tensor pack_gradients(const Heads& grads, const at::Tensor& qkv) {
  const at::Tensor& dq = grads[0];
  if (!qkv.is_cuda())
    return at::stack({dq, grads[1], grads[2]}).permute({1, 3, 0, 2, 4}).reshape(qkv.sizes());
  at::Tensor out = at::empty_like(qkv);
  kernels::PackHeads args{.source = {},
                          .stride = {},
                          .out = out.mutable_data_ptr(),
                          .batch = dq.size(0),
                          .heads = dq.size(1),
                          .tokens = dq.size(2),
                          .head_dim = dq.size(3),
                          .dtype = kernel_dtype(qkv)};
  for (std::size_t part = 0; part < grads.size(); ++part) {
    DSTRAIN_CHECK(grads[part].stride(3) == 1, "attention's gradient is not dense in a head");
    args.source[part] = grads[part].const_data_ptr();
    for (std::size_t dim = 0; dim < 3; ++dim) {
      args.stride[part][dim] = grads[part].stride(static_cast<std::int64_t>(dim));
    }
  }
  kernels::cuda::pack_heads(args, current_stream());
  return out;
}

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, std::int64_t batch,
                            std::int64_t heads) {
    const at::Tensor qkv = dense(input);
    const Attended out = forward_on(split_heads(qkv, batch, heads));
    context->save_for_backward({qkv, out.out, out.log_sum_exp, out.seed, out.offset});
    context->saved_data["shape"] = std::vector<std::int64_t>{
        batch, heads, out.max_q, out.max_k, static_cast<std::int64_t>(out.backend)};
    return out.out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1) / 3});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const std::vector<std::int64_t> shape = context->saved_data.at("shape").toIntVector();
    const std::int64_t batch = shape[0], heads = shape[1];
    const at::Tensor grad = dense(grads[0])
                                .view({batch, qkv.size(0) / batch, heads, qkv.size(1) / 3 / heads})
                                .transpose(1, 2);
    const Attended forward{.backend = static_cast<Backend>(shape[4]),
                           .out = saved[1],
                           .log_sum_exp = saved[2],
                           .seed = saved[3],
                           .offset = saved[4],
                           .max_q = shape[2],
                           .max_k = shape[3]};
    return {
        pack_gradients(backward_on(forward, grad, split_heads(qkv, batch, heads)), qkv), {}, {}};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& qkv, std::int64_t batch, std::int64_t heads) {
  DSTRAIN_CHECK(qkv.dim() == 2 && batch > 0 && heads > 0 && qkv.size(0) % batch == 0 &&
                    qkv.size(1) % (3 * heads) == 0,
                fmt::format("attention: qkv {}, batch {}, heads {}", shape_of(qkv), batch, heads));
  return Attention::apply(qkv, batch, heads);
}

}  // namespace dstrain::ops
