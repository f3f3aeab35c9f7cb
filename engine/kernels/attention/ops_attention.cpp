#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/attention/attention_plan.h"
#include "engine/kernels/attention/composed_attention.h"
#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/linear/needs_context.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Attended attend_by(const Plan& plan, const at::Tensor& qkv, const Sequences& sequences) {
  return plan.attend(qkv, sequences.starts.defined(), plan.masking(sequences),
                     [&](Backend backend) { return plan.heads(backend, qkv, sequences); });
}

/// Heads `index` of `groups` equal groups.
at::Tensor heads_of(const at::Tensor& heads, std::int64_t dim, std::int64_t index,
                    std::int64_t groups) {
  const std::int64_t count = heads.size(dim) / groups;
  return heads.narrow(dim, index * count, count);
}
Heads heads_of(const Heads& all, std::int64_t index, std::int64_t groups) {
  return {heads_of(all[0], 1, index, groups), heads_of(all[1], 1, index, groups),
          heads_of(all[2], 1, index, groups)};
}

/// attend_backward, some heads after the others, so that what a backend adds up in fp32 and returns
/// apart is that of a few heads.
void attend_backward_by_groups(const Attended& saved, const at::Tensor& grad, const Heads& in,
                               const Masking& masking, const Heads& places, std::int64_t groups) {
  // Flash attention's of packed sequences has no batch.
  const std::int64_t head_dim = saved.log_sum_exp.dim() == 2 ? 0 : 1;
  for (std::int64_t g = 0; g < groups; ++g) {
    Attended own = saved;
    own.out = heads_of(saved.out, 1, g, groups);
    // Packed also where strides do not matter, of one sample: cuDNN wants that.
    const at::Tensor sums = heads_of(saved.log_sum_exp, head_dim, g, groups).contiguous();
    own.log_sum_exp = sums.flatten().view(sums.sizes());
    const Heads to = heads_of(places, g, groups);
    const Heads made =
        attend_backward(own, heads_of(grad, 1, g, groups), heads_of(in, g, groups), masking, to);
    for (std::size_t part = 0; part < made.size(); ++part)
      if (made[part].const_data_ptr() != to[part].const_data_ptr()) to[part].copy_(made[part]);
  }
}

/// Saved are qkv, rotated, and what the backend made; stretched heads are built again in backward,
/// since one pass over qkv costs less than keeping them through the model.
struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Plan& plan,
                            const Sequences& sequences) {
    const AttentionShape& shape = plan.shape;
    const at::Tensor qkv = dense(input);
    if (shape.rope_theta > 0) rotate_heads(qkv, shape, sequences);
    const Attended all = attend_by(plan, qkv, sequences);
    context->save_for_backward({qkv, all.out, all.log_sum_exp, all.seed, all.offset,
                                sequences.starts, sequences.positions});
    context->saved_data["backend"] = static_cast<std::int64_t>(all.backend);
    plan.save(context);
    // Positions are turned back behind the gradients.
    keep_needs(context, shape.rope_theta > 0 ? GradientNeeds{} : needs_of(qkv));
    const at::Tensor by_token = all.out.transpose(1, 2);
    if (by_token.size(3) == shape.head_dim) return by_token.reshape({qkv.size(0), shape.width()});
    return resize_rows(by_token, shape.head_dim).view({qkv.size(0), shape.width()});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Plan plan = Plan::load(context);
    const at::Tensor& qkv = saved[0];
    const Attended forward{
        .backend = static_cast<Backend>(context->saved_data.at("backend").toInt()),
        .out = saved[1],
        .log_sum_exp = saved[2],
        .seed = saved[3],
        .offset = saved[4]};
    const Sequences sequences{.starts = saved[5], .longest = plan.longest, .positions = saved[6]};
    const std::int64_t batch = forward.out.size(0), width = forward.out.size(3);
    at::Tensor grad =
        dense(grads[0]).view({batch, qkv.size(0) / batch, plan.shape.heads, plan.shape.head_dim});
    if (width != plan.shape.head_dim) grad = resize_rows(grad, width);
    const Heads in = plan.heads(forward.backend, qkv, sequences);
    const at::Tensor d_qkv = at::empty_like(qkv);
    Heads places = split_heads(d_qkv, plan.shape, sequences);
    if (in[0].size(3) != plan.shape.head_dim) places = {};  // gradients of stretched heads
    const std::int64_t groups = places[0].defined() && !plan.masking(sequences).biases
                                    ? attention_head_groups(plan.shape, qkv.size(0))
                                    : 1;
    if (groups > 1) {
      attend_backward_by_groups(forward, grad.transpose(1, 2), in, plan.masking(sequences), places,
                                groups);
      pack_heads(places, d_qkv, plan.shape, sequences);
      return {d_qkv, {}, {}};
    }
    const bool leaves_sums = kept_needs(context).column_sums && places[0].defined();
    const at::Tensor sums = leaves_sums ? room_for_sums(forward, d_qkv) : at::Tensor();
    const Heads d_heads =
        attend_backward(forward, grad.transpose(1, 2), in, plan.masking(sequences), places, sums);
    pack_heads(d_heads, d_qkv, plan.shape, sequences);
    set_findings(d_qkv, {.column_sums = sums});
    return {d_qkv, {}, {}};
  }
};

}  // namespace

void check_attention(const at::Tensor& qkv, const AttentionShape& shape,
                     const Sequences& sequences) {
  DSTRAIN_CHECK(qkv.dim() == 2 && shape.batch > 0 && shape.heads > 0 && shape.kv_heads > 0 &&
                    shape.head_dim > 0 && shape.heads % shape.kv_heads == 0 &&
                    qkv.size(0) % shape.batch == 0 && qkv.size(1) == shape.qkv_width(),
                fmt::format("attention: qkv {}, batch {}, heads {} and {} of {}", shape_of(qkv),
                            shape.batch, shape.heads, shape.kv_heads, shape.head_dim));
  DSTRAIN_CHECK(!shape.interleaved || shape.heads == shape.kv_heads,
                "attention: interleaved heads are not shared");
  DSTRAIN_CHECK(shape.rope_theta == 0 || (shape.turning() % 2 == 0 && shape.turning() > 0 &&
                                          shape.turning() <= shape.head_dim),
                "attention: rotary positions need pairs of elements");
  DSTRAIN_CHECK(shape.window == 0 || (shape.window > 0 && shape.causal && !shape.alibi),
                "attention: windows are those of causal models without linear biases");
  DSTRAIN_CHECK(shape.softcap == 0 || !shape.alibi, "attention: soft caps beside linear biases");
  DSTRAIN_CHECK(!shape.alibi || shape.causal,
                "attention: linear biases are those of causal models");
  if (qkv.is_cuda())
    require_taken(attention_head_dims(shape, static_cast<int>(qkv.element_size()),
                                      kernels::cuda::gpu_limits()),
                  shape.head_dim, "attention, elements of a head");
  const auto is_index = [&](const at::Tensor& x) {
    return x.defined() && x.scalar_type() == at::kInt && x.device() == qkv.device() &&
           x.dim() == 1 && x.is_contiguous();
  };
  const bool packed = sequences.starts.defined();
  DSTRAIN_CHECK(
      !packed || (is_index(sequences.starts) && is_index(sequences.positions) &&
                  sequences.starts.size(0) > 1 && sequences.positions.size(0) == qkv.size(0) &&
                  sequences.longest > 0),
      "attention: packed sequences need starts, positions (int32, beside qkv) and longest");
  DSTRAIN_CHECK(!shape.alibi || (packed ? sequences.longest : qkv.size(0) / shape.batch) <=
                                    kernels::kAlibiPositions,
                "attention: too many positions for linear biases");
}

at::Tensor attention(const at::Tensor& qkv, const AttentionShape& shape,
                     const Sequences& sequences) {
  check_attention(qkv, shape, sequences);
  return Attention::apply(qkv, Plan::of(qkv, shape, sequences.longest), sequences);
}

std::int64_t attention_head_width(const AttentionShape& shape, int element_bytes) {
  constexpr int kFloatBytes = 4;
  return shape.alibi && element_bytes < kFloatBytes ? stretched_widths(shape.head_dim).query_key
                                                    : shape.head_dim;
}

TakenSizes attention_head_dims(const AttentionShape& shape, int element_bytes,
                               const GpuLimits& limits) {
  constexpr std::int64_t kWidestForFlash = 256;
  TakenSizes taken = kernels::head_dims(shape.rope_theta > 0 && shape.turning() == shape.head_dim);
  constexpr int kFloatBytes = 4;
  const bool by_flash = limits.flash_attention && element_bytes < kFloatBytes && shape.softcap == 0;
  if (by_flash) taken.max = kWidestForFlash;
  // Linear biases stand in the heads.
  while (by_flash && shape.alibi && stretched_widths(taken.max).query_key > kWidestForFlash)
    taken.max -= taken.unit;
  return taken;
}

std::int64_t attention_saved_bytes(const AttentionShape& shape, std::int64_t rows,
                                   int element_bytes) {
  constexpr int kFloatBytes = 4;
  std::int64_t elements = shape.qkv_width() + shape.width();
  const std::int64_t width = attention_head_width(shape, element_bytes);
  // The output at the width of stretched values is kept beside the one that is returned.
  const std::int64_t value = stretched_widths(shape.head_dim).value;
  if (width != shape.head_dim && value != shape.head_dim) elements += shape.heads * value;
  return rows * (elements * element_bytes + shape.heads * kFloatBytes);
}

std::int64_t attention_head_groups(const AttentionShape& shape, std::int64_t rows) {
  constexpr std::int64_t kAtOnce = 1 << 18;  // rows times heads: 128 MiB of fp32 with 128 elements
  if (shape.alibi || !shape.causal || shape.interleaved || shape.softcap > 0) return 1;
  for (std::int64_t groups = 1; groups < shape.kv_heads; ++groups)
    if (shape.kv_heads % groups == 0 && rows * shape.heads / groups <= kAtOnce) return groups;
  return shape.kv_heads;
}

std::int64_t attention_score_bytes(const AttentionShape& shape, std::int64_t batch,
                                   std::int64_t tokens, int compute_bytes) {
  // Backward: scores and gradients of shares in fp32, shares and gradients of scores.
  constexpr std::int64_t kFloatBytes = 4;
  if (shape.softcap == 0) return 0;
  const std::int64_t heads = batch * shape.heads;
  return 2 * (kFloatBytes + compute_bytes) * heads * composed_queries(heads, tokens, tokens) *
         tokens;
}

at::Tensor attention_stretched(const at::Tensor& qkv, const AttentionShape& shape,
                               const Sequences& sequences, StretchedWidths widths) {
  check_attention(qkv, shape, sequences);
  return Attention::apply(
      qkv, Plan{.shape = shape, .stretched = widths, .longest = sequences.longest}, sequences);
}

}  // namespace dstrain::ops
