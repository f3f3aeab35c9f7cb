#include "engine/kernels/attention/cached_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <vector>

#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/op_support.h"
#include "test/support/catch.h"

/// The kernels of attention to a cache against their definition in double.
namespace dstrain {
namespace {

using ops::AttentionShape;

/// Query heads that share a key head: one, some, more than a block takes; widths with and without
/// lanes that have nothing to do.
const AttentionShape kShapes[] = {{.heads = 16, .kv_heads = 2, .head_dim = 128, .causal = true},
                                  {.heads = 8, .kv_heads = 8, .head_dim = 64, .causal = true},
                                  {.heads = 28, .kv_heads = 4, .head_dim = 128, .causal = true},
                                  {.heads = 12, .kv_heads = 1, .head_dim = 96, .causal = true},
                                  {.heads = 4, .kv_heads = 2, .head_dim = 256, .causal = true},
                                  {.heads = 12,
                                   .kv_heads = 12,
                                   .head_dim = 80,
                                   .interleaved = true,
                                   .causal = true,
                                   .alibi = true,
                                   .first_head = 12,
                                   .model_heads = 24}};

at::Tensor defined_attention(const at::Tensor& qkv, const AttentionShape& shape,
                             const ops::KeyValues& cache, const at::Tensor& slots,
                             const at::Tensor& positions) {
  const at::Tensor rows = qkv.cpu(), keys = cache.keys.cpu(), values = cache.values.cpu();
  const at::Tensor out = at::empty({rows.size(0), shape.width()}, rows.options());
  const kernels::HeadLayout layout{shape.heads, shape.kv_heads, shape.head_dim, shape.interleaved};
  kernels::reference::store_heads({.qkv = rows.const_data_ptr(),
                                   .keys = keys.mutable_data_ptr(),
                                   .values = values.mutable_data_ptr(),
                                   .slots = slots.const_data_ptr<std::int32_t>(),
                                   .positions = positions.const_data_ptr<std::int32_t>(),
                                   .rows = rows.size(0),
                                   .capacity = keys.size(1),
                                   .layout = layout,
                                   .dtype = ops::kernel_dtype(rows)});
  kernels::reference::cached_attention(
      {.qkv = rows.const_data_ptr(),
       .keys = keys.const_data_ptr(),
       .values = values.const_data_ptr(),
       .slots = slots.const_data_ptr<std::int32_t>(),
       .positions = positions.const_data_ptr<std::int32_t>(),
       .out = out.mutable_data_ptr(),
       .partial = nullptr,
       .rows = rows.size(0),
       .capacity = keys.size(1),
       .splits = 1,
       .layout = layout,
       .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim))),
       .alibi = shape.alibi,
       .first_head = shape.first_head,
       .model_heads = shape.slopes_of(),
       .dtype = ops::kernel_dtype(rows)});
  return out.to(at::kDouble);
}

TEST_CASE("attention to a cache is its definition", "[gpu]") {
  const at::NoGradGuard no_gradients;
  const auto gpu = at::TensorOptions().device(at::kCUDA);
  for (const AttentionShape& form : kShapes) {
    for (const auto& [dtype, allowed] :
         {std::pair{at::kBFloat16, 0x1p-7}, std::pair{at::kHalf, 0x1p-10},
          std::pair{at::kFloat, 1e-5}}) {
      for (const std::int64_t capacity : {std::int64_t{40}, std::int64_t{1100}}) {
        AttentionShape shape = form;
        const auto last = static_cast<std::int32_t>(capacity - 1);
        const at::Tensor positions =
            at::tensor(std::vector<std::int32_t>{0, 7, 31, last / 2, last}, at::kInt);
        const at::Tensor slots = at::tensor(std::vector<std::int32_t>{4, 0, 5, 2, 1}, at::kInt);
        shape.batch = positions.size(0);
        const at::Tensor qkv = at::randn({shape.batch, shape.qkv_width()}, gpu).to(dtype);
        const ops::KeyValues cache{
            at::randn({6, capacity, shape.kv_heads, shape.head_dim}, gpu).to(dtype),
            at::randn({6, capacity, shape.kv_heads, shape.head_dim}, gpu).to(dtype)};
        const at::Tensor wanted = defined_attention(qkv, shape, cache, slots, positions);
        const at::Tensor found =
            ops::cached_attention(qkv, shape,
                                  {.starts = at::arange(shape.batch + 1, gpu.dtype(at::kInt)),
                                   .longest = capacity,
                                   .positions = positions.cuda()},
                                  {.slots = slots.cuda(), .cache = cache})
                .cpu()
                .to(at::kDouble);
        CAPTURE(shape.heads, shape.head_dim, static_cast<int>(dtype), capacity);
        CHECK(at::abs(found - wanted).max().item<double>() <=
              allowed * wanted.abs().max().item<double>());
      }
    }
  }
}

}  // namespace
}  // namespace dstrain
