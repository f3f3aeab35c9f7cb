#include "engine/kernels/attention/cached_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/kernels/attention/attention_heads.h"
#include "engine/kernels/attention/attention_plan.h"
#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

kernels::HeadLayout cached_layout(const AttentionShape& shape) {
  return {shape.heads, shape.kv_heads, shape.head_dim, shape.interleaved};
}

void store_rows(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences,
                const CachedRows& rows) {
  const kernels::StoreHeads args{.qkv = qkv.const_data_ptr(),
                                 .keys = rows.cache.keys.mutable_data_ptr(),
                                 .values = rows.cache.values.mutable_data_ptr(),
                                 .slots = rows.slots.const_data_ptr<std::int32_t>(),
                                 .positions = sequences.positions.const_data_ptr<std::int32_t>(),
                                 .rows = qkv.size(0),
                                 .capacity = rows.cache.keys.size(1),
                                 .layout = cached_layout(shape),
                                 .dtype = kernel_dtype(qkv)};
  if (qkv.is_cuda()) {
    kernels::cuda::store_heads(args, current_stream());
  } else {
    kernels::reference::store_heads(args);
  }
}

at::Tensor attend_on_gpu(const at::Tensor& qkv, const AttentionShape& shape,
                         const Sequences& sequences, const CachedRows& rows) {
  const kernels::HeadLayout layout = cached_layout(shape);
  const std::int64_t count = qkv.size(0);
  const std::int64_t keys =
      shape.window > 0 ? std::min(shape.window, sequences.longest) : sequences.longest;
  const kernels::CachedBlocks blocks = kernels::cached_blocks(count, layout, keys);
  const at::Tensor table = shape.rope_theta > 0
                               ? rotary_table(qkv.device(), shape, rows.cache.keys.size(1))
                               : at::Tensor();
  const at::Tensor out = at::empty({count, shape.width()}, qkv.options());
  at::Tensor partial;
  if (blocks.splits > 1)
    partial = at::empty({count, shape.heads, blocks.splits, shape.head_dim + 2},
                        qkv.options().dtype(at::kFloat));
  kernels::cuda::cached_attention(
      {.qkv = qkv.const_data_ptr(),
       .keys = rows.cache.keys.mutable_data_ptr(),
       .values = rows.cache.values.mutable_data_ptr(),
       .table = table.defined() ? table.const_data_ptr<float>() : nullptr,
       .slots = rows.slots.const_data_ptr<std::int32_t>(),
       .positions = sequences.positions.const_data_ptr<std::int32_t>(),
       .out = out.mutable_data_ptr(),
       .partial = blocks.splits > 1 ? partial.mutable_data_ptr<float>() : nullptr,
       .rows = count,
       .capacity = rows.cache.keys.size(1),
       .blocks = blocks,
       .layout = layout,
       .scale = static_cast<float>(shape.score_scale()),
       .alibi = shape.alibi,
       .first_head = shape.first_head,
       .model_heads = shape.slopes_of(),
       .dtype = kernel_dtype(qkv),
       .window = shape.window,
       .softcap = static_cast<float>(shape.softcap)},
      current_stream());
  return out;
}

/// Row by row, by ATen's products in fp32.
at::Tensor attend_on_cpu(const at::Tensor& qkv, const AttentionShape& shape,
                         const Sequences& sequences, const CachedRows& rows) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  const double scale = shape.score_scale();
  const at::Tensor queries = split_heads(qkv, shape, sequences)[0].select(0, 0);  // [heads, M, d]
  const at::Tensor out = at::empty({qkv.size(0), shape.width()}, qkv.options());
  for (std::int64_t row = 0; row < qkv.size(0); ++row) {
    const std::int64_t position = sequences.positions.const_data_ptr<std::int32_t>()[row],
                       slot = rows.slots.const_data_ptr<std::int32_t>()[row];
    const std::int64_t first =
        shape.window > 0 ? std::max<std::int64_t>(position + 1 - shape.window, 0) : 0;
    const auto kept = [&](const at::Tensor& all) {  // [kv_heads, keys, d]
      return all.select(0, slot)
          .narrow(0, first, position + 1 - first)
          .transpose(0, 1)
          .to(at::kFloat);
    };
    const at::Tensor query =
        queries.select(1, row).view({shape.kv_heads, group, shape.head_dim}).to(at::kFloat);
    at::Tensor scores = at::matmul(
        query * scale, kept(rows.cache.keys).transpose(1, 2));  // [kv_heads, group, keys]
    if (shape.softcap > 0) scores = at::tanh(scores / shape.softcap) * shape.softcap;
    if (shape.alibi) {
      const at::Tensor places = at::arange(position + 1, scores.options());
      scores += linear_biases(places.narrow(0, position, 1), places,
                              {.heads = shape.heads,
                               .first_head = shape.first_head,
                               .model_heads = shape.slopes_of()})
                    .view(scores.sizes());
    }
    out.select(0, row).copy_(
        at::matmul(at::softmax(scores, 2), kept(rows.cache.values)).reshape({shape.width()}));
  }
  return out;
}

void check_cache(const at::Tensor& qkv, const AttentionShape& shape, const Sequences& sequences,
                 const CachedRows& rows) {
  check_attention(qkv, shape, sequences);
  const auto fits = [&](const at::Tensor& x) {
    return x.defined() && x.dim() == 4 && x.is_contiguous() &&
           x.scalar_type() == qkv.scalar_type() && x.device() == qkv.device() &&
           x.size(2) == shape.kv_heads && x.size(3) == shape.head_dim;
  };
  DSTRAIN_CHECK(sequences.starts.defined() && shape.causal && fits(rows.cache.keys) &&
                    fits(rows.cache.values) && rows.cache.keys.sizes() == rows.cache.values.sizes(),
                fmt::format("cached attention: keys {}, {} heads of {}", shape_of(rows.cache.keys),
                            shape.kv_heads, shape.head_dim));
  DSTRAIN_CHECK(rows.slots.defined() && rows.slots.scalar_type() == at::kInt &&
                    rows.slots.device() == qkv.device() && rows.slots.size(0) == qkv.size(0),
                "cached attention: slots are int32, one for each row");
  DSTRAIN_CHECK(sequences.longest <= rows.cache.keys.size(1),
                "cached attention: a position is beyond the cache");
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& input, const AttentionShape& shape,
                            const Sequences& sequences, const CachedRows& rows) {
  check_cache(input, shape, sequences, rows);
  const at::NoGradGuard no_gradients;
  const at::Tensor qkv = dense(input);
  const bool on_gpu = !rows.whole && qkv.is_cuda();
  // The kernel turns whole heads itself.
  if (on_gpu && shape.turning() == shape.head_dim)
    return attend_on_gpu(qkv, shape, sequences, rows);
  AttentionShape turned = shape;
  if (shape.rope_theta > 0) {
    // Which frequencies they are goes by the room, which is that of later passes, too.
    Sequences room = sequences;
    room.longest = rows.cache.keys.size(1);
    rotate_heads(qkv, shape, room);
  }
  turned.rope_theta = 0;
  if (on_gpu) return attend_on_gpu(qkv, turned, sequences, rows);
  store_rows(qkv, turned, sequences, rows);
  return rows.whole ? attention(qkv, turned, sequences)
                    : attend_on_cpu(qkv, turned, sequences, rows);
}

}  // namespace dstrain::ops
