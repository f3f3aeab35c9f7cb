#include "engine/kernels/attention/cached_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <vector>

#include "test/support/catch.h"

/// Attention to a cache against attention to whole sequences.
namespace dstrain {
namespace {

using ops::AttentionShape;

const AttentionShape kCachedShapes[] = {
    {.batch = 1, .heads = 4, .kv_heads = 4, .head_dim = 8, .causal = true},
    {.batch = 1, .heads = 12, .kv_heads = 2, .head_dim = 16, .causal = true, .rope_theta = 1e4},
    {.batch = 1,
     .heads = 6,
     .kv_heads = 6,
     .head_dim = 8,
     .interleaved = true,
     .causal = true,
     .alibi = true}};

at::Tensor indices(const std::vector<std::int32_t>& values) { return at::tensor(values, at::kInt); }

TEST_CASE("attention of one token at a time is that of the whole sequence", "[kernels]") {
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
    cached.slots = indices(own);
    cached.whole = true;
    const at::Tensor first = ops::cached_attention(
        at::cat({rows[0].narrow(0, 0, 5), rows[1].narrow(0, 0, 3)}), shape,
        {.starts = indices({0, 5, 8}), .longest = 5, .positions = indices(positions)}, cached);
    CHECK(at::allclose(first.narrow(0, 0, 5), wanted[0].narrow(0, 0, 5), 1e-5, 1e-5));
    CHECK(at::allclose(first.narrow(0, 5, 3), wanted[1].narrow(0, 0, 3), 1e-5, 1e-5));

    cached.slots = indices({2, 0});
    cached.whole = false;
    AttentionShape pair = shape;
    pair.batch = 2;
    for (std::int64_t i = 0; i < 6; ++i) {
      const at::Tensor both = at::cat({rows[0].narrow(0, 5 + i, 1), rows[1].narrow(0, 3 + i, 1)});
      const at::Tensor out = ops::cached_attention(
          both, pair,
          {.starts = indices({0, 1, 2}),
           .longest = 16,
           .positions =
               indices({static_cast<std::int32_t>(5 + i), static_cast<std::int32_t>(3 + i)})},
          cached);
      CAPTURE(i, shape.alibi);
      CHECK(at::allclose(out[0], wanted[0][5 + i], 1e-5, 1e-5));
      CHECK(at::allclose(out[1], wanted[1][3 + i], 1e-5, 1e-5));
    }
  }
}

}  // namespace
}  // namespace dstrain
