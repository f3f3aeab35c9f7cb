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
#include "test/kernels/reference/reference.h"
#include "test/support/catch.h"

/// The kernels of attention to a cache against their definition in double.
namespace dstrain {
namespace {

using ops::AttentionShape;

/// Query heads that share a key head: one, some, more than a block takes; widths with and without
/// lanes that have nothing to do.
const AttentionShape kShapes[] = {
    {.heads = 16, .kv_heads = 2, .head_dim = 128, .causal = true, .rope_theta = 1e6},
    {.heads = 8, .kv_heads = 8, .head_dim = 64, .causal = true},
    {.heads = 28, .kv_heads = 4, .head_dim = 128, .causal = true},
    {.heads = 14, .kv_heads = 7, .head_dim = 64, .causal = true, .rope_theta = 1e4},
    {.heads = 12, .kv_heads = 1, .head_dim = 96, .causal = true, .rope_theta = 1e4},
    {.heads = 4, .kv_heads = 2, .head_dim = 256, .causal = true, .rope_theta = 1e4},
    {.heads = 12,
     .kv_heads = 12,
     .head_dim = 80,
     .interleaved = true,
     .causal = true,
     .alibi = true,
     .first_head = 12,
     .model_heads = 24}};

/// `cache` on the host gets the rows' keys and values, too.
at::Tensor defined_attention(const at::Tensor& rows, const AttentionShape& shape,
                             const ops::KeyValues& cache, const at::Tensor& slots,
                             const at::Tensor& positions) {
  const at::Tensor &keys = cache.keys, &values = cache.values;
  const at::Tensor out = at::empty({rows.size(0), shape.width()}, rows.options());
  const kernels::HeadLayout layout{shape.heads, shape.kv_heads, shape.head_dim, shape.interleaved};
  const at::Tensor table = shape.rope_theta > 0
                               ? ops::rotary_table(at::kCPU, shape, keys.size(1))
                               : at::Tensor();
  kernels::reference::cached_attention(
      {.qkv = rows.const_data_ptr(),
       .keys = keys.mutable_data_ptr(),
       .values = values.mutable_data_ptr(),
       .table = table.defined() ? table.const_data_ptr<float>() : nullptr,
       .slots = slots.const_data_ptr<std::int32_t>(),
       .positions = positions.const_data_ptr<std::int32_t>(),
       .out = out.mutable_data_ptr(),
       .partial = nullptr,
       .rows = rows.size(0),
       .capacity = keys.size(1),
       .blocks = {.splits = 1, .warps = 8},
       .layout = layout,
       .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim))),
       .alibi = shape.alibi,
       .first_head = shape.first_head,
       .model_heads = shape.slopes_of(),
       .dtype = ops::kernel_dtype(rows)});
  return out.to(at::kDouble);
}

bool close(const at::Tensor& found, const at::Tensor& wanted, double allowed) {
  const at::Tensor exact = wanted.to(at::kDouble);
  return at::abs(found.cpu().to(at::kDouble) - exact).max().item<double>() <=
         allowed * exact.abs().max().item<double>();
}

void compare_cached(AttentionShape shape, at::ScalarType dtype, double allowed,
                    std::int64_t capacity, std::int64_t rows) {
  const auto gpu = at::TensorOptions().device(at::kCUDA);
  const auto last = static_cast<std::int32_t>(capacity - 1);
  const std::vector<std::int32_t> some = {0, 7, 31, last / 2, last};
  std::vector<std::int32_t> positions, slots;
  for (std::int64_t row = 0; row < rows; ++row) {
    positions.push_back(some[static_cast<std::size_t>(row) % some.size()]);
    slots.push_back(static_cast<std::int32_t>(rows - row));
  }
  const at::Tensor at_positions = at::tensor(positions, at::kInt),
                   at_slots = at::tensor(slots, at::kInt);
  shape.batch = rows;
  const at::Tensor qkv = at::randn({rows, shape.qkv_width()}, gpu).to(dtype);
  const std::vector<std::int64_t> sizes = {rows + 1, capacity, shape.kv_heads, shape.head_dim};
  const ops::KeyValues cache{at::randn(sizes, gpu).to(dtype), at::randn(sizes, gpu).to(dtype)};
  const ops::KeyValues on_host{cache.keys.cpu(), cache.values.cpu()};
  const at::Tensor wanted =
      defined_attention(qkv.cpu(), shape, on_host, at_slots, at_positions);
  const at::Tensor found =
      ops::cached_attention(qkv, shape,
                            {.starts = at::arange(rows + 1, gpu.dtype(at::kInt)),
                             .longest = capacity,
                             .positions = at_positions.cuda()},
                            {.slots = at_slots.cuda(), .cache = cache});
  CAPTURE(shape.heads, shape.head_dim, static_cast<int>(dtype), capacity, rows);
  CHECK(close(found, wanted, allowed));
  CHECK(close(cache.keys, on_host.keys, allowed));
  CHECK(close(cache.values, on_host.values, 0));
}

TEST_CASE("attention to a cache is its definition", "[gpu]") {
  const at::NoGradGuard no_gradients;
  for (const AttentionShape& shape : kShapes) {
    for (const auto& [dtype, allowed] :
         {std::pair{at::kBFloat16, 0x1p-7}, std::pair{at::kHalf, 0x1p-10},
          std::pair{at::kFloat, 1e-5}}) {
      // Numbers of rows that are cut into blocks in different ways, keys in one run and in several.
      for (const std::int64_t rows : {1, 5, 20, 150}) compare_cached(shape, dtype, allowed, 40, rows);
      for (const std::int64_t rows : {1, 5, 20}) compare_cached(shape, dtype, allowed, 1100, rows);
    }
  }
}

}  // namespace
}  // namespace dstrain
