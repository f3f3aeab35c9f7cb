#include "engine/kernels/attention/cached_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <vector>

#include "engine/kernels/attention/attention_heads.h"
#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/devices.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"

/// Attention to a cache against attention to whole sequences and against its definition in double.
namespace dstrain {
namespace {

using ops::AttentionShape;
using test::RowsSize;

const AttentionShape kCachedShapes[] = {
    {.batch = 1, .heads = 4, .kv_heads = 4, .head_dim = 8, .causal = true},
    {.batch = 1, .heads = 12, .kv_heads = 2, .head_dim = 16, .causal = true, .rope_theta = 1e4},
    {.batch = 1,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .causal = true,
     .rope_theta = 1e4,
     .rotary = 8,
     .window = 4},
    {.batch = 1,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .causal = true,
     .rope_theta = 1e4,
     .window = 5,
     .scale = 0.4,
     .softcap = 1.5},
    {.batch = 1,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .causal = true,
     .rope_theta = 1e4,
     .rope_scaling = {.positions = 8,
                      .short_divisors = {1, 1, 1, 1},
                      .long_divisors = {1, 2, 3, 4},
                      .amplitude = 1.1}},
    {.batch = 1,
     .heads = 6,
     .kv_heads = 6,
     .head_dim = 8,
     .interleaved = true,
     .causal = true,
     .alibi = true}};

at::Tensor int32s(const std::vector<std::int32_t>& values) { return at::tensor(values, at::kInt); }

TEST_CASE("attention of one token at a time is that of the whole sequence", "[kernels][cpu]") {
  const at::NoGradGuard no_gradients;
  for (const AttentionShape& shape : kCachedShapes) {
    // Two sequences, of which the first 5 and 3 tokens are read at once, in slots 2 and 0.
    const std::vector<std::int64_t> lengths = {11, 9}, read = {5, 3}, slots = {2, 0};
    std::vector<at::Tensor> rows, wanted;
    for (const std::int64_t length : lengths) {
      rows.push_back(at::randn({length, shape.qkv_width()}));
      wanted.push_back(ops::attention(rows.back().clone(), shape));
    }
    ops::CachedRows cached;
    cached.cache = {at::full({3, 16, shape.kv_heads, shape.head_dim}, 1e9),
                    at::full({3, 16, shape.kv_heads, shape.head_dim}, 1e9)};
    std::vector<std::int32_t> positions, own;
    for (std::size_t s = 0; s < 2; ++s) {
      for (std::int32_t i = 0; i < read[s]; ++i) {
        positions.push_back(i);
        own.push_back(static_cast<std::int32_t>(slots[s]));
      }
    }
    cached.slots = int32s(own);
    cached.whole = true;
    const at::Tensor first = ops::cached_attention(
        at::cat({rows[0].narrow(0, 0, 5), rows[1].narrow(0, 0, 3)}), shape,
        {.starts = int32s({0, 5, 8}), .longest = 5, .positions = int32s(positions)}, cached);
    CHECK(at::allclose(first.narrow(0, 0, 5), wanted[0].narrow(0, 0, 5), 1e-5, 1e-5));
    CHECK(at::allclose(first.narrow(0, 5, 3), wanted[1].narrow(0, 0, 3), 1e-5, 1e-5));

    cached.slots = int32s({2, 0});
    cached.whole = false;
    AttentionShape pair = shape;
    pair.batch = 2;
    for (std::int64_t i = 0; i < 6; ++i) {
      const at::Tensor both = at::cat({rows[0].narrow(0, 5 + i, 1), rows[1].narrow(0, 3 + i, 1)});
      const at::Tensor out = ops::cached_attention(
          both, pair,
          {.starts = int32s({0, 1, 2}),
           .longest = 16,
           .positions =
               int32s({static_cast<std::int32_t>(5 + i), static_cast<std::int32_t>(3 + i)})},
          cached);
      CAPTURE(i, shape.alibi);
      CHECK(at::allclose(out[0], wanted[0][5 + i], 1e-5, 1e-5));
      CHECK(at::allclose(out[1], wanted[1][3 + i], 1e-5, 1e-5));
    }
  }
}

/// Query heads that share a key head: one, some, more than a block takes; widths with and without
/// lanes that have nothing to do.
const AttentionShape kSharedHeads[] = {
    {.heads = 16, .kv_heads = 2, .head_dim = 128, .causal = true, .rope_theta = 1e6},
    {.heads = 8, .kv_heads = 8, .head_dim = 64, .causal = true},
    {.heads = 28, .kv_heads = 4, .head_dim = 128, .causal = true},
    {.heads = 14, .kv_heads = 7, .head_dim = 64, .causal = true, .rope_theta = 1e4},
    {.heads = 12, .kv_heads = 1, .head_dim = 96, .causal = true, .rope_theta = 1e4},
    {.heads = 4, .kv_heads = 2, .head_dim = 256, .causal = true, .rope_theta = 1e4},
    {.heads = 4, .kv_heads = 1, .head_dim = 256, .causal = true, .rope_theta = 1e4, .window = 9},
    {.heads = 8, .kv_heads = 4, .head_dim = 128, .causal = true, .window = 500},
    {.heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .causal = true,
     .rope_theta = 1e4,
     .window = 600,
     .scale = 0.05,
     .softcap = 2},
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
  const at::Tensor table =
      shape.rope_theta > 0 ? ops::rotary_table(at::kCPU, shape, keys.size(1)) : at::Tensor();
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
       .scale = static_cast<float>(shape.score_scale()),
       .alibi = shape.alibi,
       .first_head = shape.first_head,
       .model_heads = shape.slopes_of(),
       .dtype = ops::kernel_dtype(rows),
       .window = shape.window,
       .softcap = static_cast<float>(shape.softcap)});
  return out.to(at::kDouble);
}

bool within(const at::Tensor& found, const at::Tensor& wanted, double allowed) {
  const at::Tensor exact = wanted.to(at::kDouble);
  return (found.cpu().to(at::kDouble) - exact).abs().max().item<double>() <=
         allowed * exact.abs().max().item<double>();
}

TEST_CASE("attention to a cache is its definition", "[kernels][reference]") {
  const at::NoGradGuard no_gradients;
  const auto device = GENERATE(from_range(test::devices()));
  AttentionShape shape = GENERATE(from_range(std::begin(kSharedHeads), std::end(kSharedHeads)));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  // Numbers of rows that are cut into blocks in different ways, keys in one run and in several.
  const auto [rows, capacity] =
      GENERATE(RowsSize{1, 40}, RowsSize{5, 40}, RowsSize{20, 40}, RowsSize{150, 40},
               RowsSize{1, 1100}, RowsSize{5, 1100}, RowsSize{20, 1100});
  if (device.is_cpu() && rows * capacity > 2000) return;
  CAPTURE(device.str(), shape.heads, shape.head_dim, c10::toString(dtype), capacity, rows);
  const auto last = static_cast<std::int32_t>(capacity - 1);
  const std::vector<std::int32_t> some = {0, 7, 31, last / 2, last};
  std::vector<std::int32_t> positions, slots;
  for (std::int64_t row = 0; row < rows; ++row) {
    positions.push_back(some[static_cast<std::size_t>(row) % some.size()]);
    slots.push_back(static_cast<std::int32_t>(rows - row));
  }
  const at::Tensor at_positions = int32s(positions), at_slots = int32s(slots);
  shape.batch = rows;
  test::Random random(1);
  const at::Tensor qkv = random({rows, shape.qkv_width()}, dtype);
  const std::vector<std::int64_t> sizes = {rows + 1, capacity, shape.kv_heads, shape.head_dim};
  const ops::KeyValues wanted_cache{random(sizes, dtype), random(sizes, dtype)};
  const ops::KeyValues cache{wanted_cache.keys.clone().to(device),
                             wanted_cache.values.clone().to(device)};
  const at::Tensor wanted = defined_attention(qkv, shape, wanted_cache, at_slots, at_positions);
  const at::Tensor found =
      ops::cached_attention(qkv.to(device), shape,
                            {.starts = at::arange(rows + 1, at_slots.options()).to(device),
                             .longest = capacity,
                             .positions = at_positions.to(device)},
                            {.slots = at_slots.to(device), .cache = cache});
  const double allowed = dtype == at::kFloat ? 1e-5 : 2 * test::unit_roundoff(dtype);
  CHECK(within(found, wanted, allowed));
  CHECK(within(cache.keys, wanted_cache.keys, allowed));
  CHECK(within(cache.values, wanted_cache.values, 0));
}

}  // namespace
}  // namespace dstrain
