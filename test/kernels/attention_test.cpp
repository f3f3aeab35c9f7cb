#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <cmath>

#include "engine/kernels/ops.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

/// softmax(q k^T / sqrt(d)) v, written out.
at::Tensor plain_attention(const at::Tensor& qkv, std::int64_t batch, std::int64_t heads) {
  const std::int64_t head_dim = qkv.size(1) / 3 / heads;
  const at::Tensor all = qkv.view({batch, -1, 3, heads, head_dim}).permute({2, 0, 3, 1, 4});
  const at::Tensor scores = at::matmul(all.select(0, 0), all.select(0, 1).transpose(2, 3)) /
                            std::sqrt(static_cast<double>(head_dim));
  return at::matmul(at::softmax(scores, -1), all.select(0, 2))
      .transpose(1, 2)
      .reshape({qkv.size(0), qkv.size(1) / 3});
}

TEST_CASE("attention equals the softmax formula, the packed gradient included", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t tokens = GENERATE(1, 5, 197);
  const std::int64_t heads = GENERATE(1, 3);
  CAPTURE(c10::toString(dtype), tokens, heads);
  test::Random random(1);
  const std::int64_t batch = 2, head_dim = 8;
  const at::Tensor qkv = test::leaf(random({batch * tokens, 3 * heads * head_dim}, dtype)),
                   qkv64 = test::exact(qkv);
  const at::Tensor dy = random({batch * tokens, heads * head_dim}, dtype);
  const at::Tensor y = ops::attention(qkv, batch, heads),
                   y64 = plain_attention(qkv64, batch, heads);
  y.backward(dy);
  y64.backward(dy.to(at::kDouble));
  REQUIRE(test::far(y, y64, dtype, tokens) == "");
  REQUIRE(test::far(qkv.grad(), qkv64.grad(), dtype, tokens) == "");
}

}  // namespace
}  // namespace dstrain
