#include "test/kernels/bounds.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "test/kernels/attention_bounds.h"
#include "test/kernels/optimizer_bounds.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// The bounds are no wider than they must be: what a small mistake gives lies outside.
namespace dstrain {
namespace {

using test::Bounded;
using test::far;

TEST_CASE("the bound of a product notices one term of many, and one wrong element", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(c10::toString(dtype));
  test::Random random(1);
  const at::Tensor x = random({7, 512}, dtype), weight = random({9, 512}, dtype);
  const Bounded bound = test::times(x, weight, dtype);
  REQUIRE(far(bound.value, bound) == "");
  const at::Tensor cut =
      at::matmul(x.narrow(1, 1, 511).to(at::kDouble), weight.narrow(1, 1, 511).to(at::kDouble).t());
  REQUIRE(far(cut, bound) != "");
  at::Tensor wrong = bound.value.clone();
  wrong[3][4] += 0.1 * bound.value.std();
  REQUIRE(far(wrong, bound).starts_with("element 31:"));
  REQUIRE(far(bound.value * (dtype == at::kFloat ? 1.001 : 1.02), bound) != "");
  wrong = bound.value.clone();
  wrong[0][0] = std::numeric_limits<double>::quiet_NaN();
  REQUIRE(far(wrong, bound) != "");
}

TEST_CASE("the bounds of norms notice another variance and a term of the gradient", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(c10::toString(dtype));
  test::Random random(2);
  const std::int64_t dim = 40;
  const at::Tensor x = random({23, dim}, dtype), dy = random({23, dim}, dtype),
                   weight = random({dim}, dtype), bias = random({dim}, dtype);
  const auto layer = test::layer_norm(x, weight, bias, 1e-6, dy, dtype);
  const auto rms = test::rms_norm(x, weight, 1e-6, dy, dtype);
  // Divided by n - 1 instead of n.
  const double unbiased = std::sqrt(39.0 / 40);
  REQUIRE(far((layer.y.value - bias) * unbiased + bias, layer.y) != "");
  REQUIRE(far(rms.y.value * unbiased, rms.y) != "");
  REQUIRE(far(layer.dx.value, rms.dx) != "");  // without the mean's part of the gradient
  REQUIRE(far(rms.dweight.value * 0.99, rms.dweight) != "");
}

TEST_CASE("the bounds of the losses notice a smoothing or a class more", "[kernels]") {
  test::Random random(3);
  const at::Tensor z = random({37, 1003}), weights = at::ones({37});
  const at::Tensor labels = (random({37}).abs() * 1000).to(at::kLong).remainder(1002);
  const auto bounds = test::cross_entropy(z, labels, weights, 0.1, 3);
  const auto other = test::cross_entropy(z, labels, weights, 0.11, 3);
  REQUIRE(far(other.loss.value, bounds.loss) != "");
  REQUIRE(far(other.dlogits.value, bounds.dlogits) != "");
  const auto fewer = test::cross_entropy(z.narrow(1, 0, 1002), labels, weights, 0.1, 3);
  REQUIRE(far(fewer.loss.value, bounds.loss) != "");
}

TEST_CASE("the bounds of attention notice scale, mask, biases, angles and one key", "[kernels]") {
  const std::int64_t tokens = 512;
  test::Random random(4);
  const ops::AttentionShape shape{.batch = 1,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .head_dim = 16,
                                  .interleaved = true,
                                  .causal = true,
                                  .rope_theta = 1e4,
                                  .alibi = true};
  const at::Tensor qkv = random({tokens, shape.qkv_width()}), dy = random({tokens, shape.width()});
  const auto bounds = test::attention_bounds(qkv, dy, shape, {tokens});
  const auto noticed = [&](const ops::AttentionShape& other, const at::Tensor& other_qkv,
                           double factor = 1) {
    const at::Tensor leaf = test::exact(other_qkv),
                     out = test::plain_attention(leaf, other, {tokens});
    out.backward(dy.to(at::kDouble));
    return far(out * factor, bounds.out) != "" && far(leaf.grad() * factor, bounds.grad) != "";
  };
  REQUIRE_FALSE(noticed(shape, qkv));
  REQUIRE(noticed(shape, qkv, 1.001));
  ops::AttentionShape other = shape;
  other.causal = false;
  REQUIRE(noticed(other, qkv));
  other = shape, other.alibi = false;
  REQUIRE(noticed(other, qkv));
  other = shape, other.rope_theta = 1.01e4;
  REQUIRE(noticed(other, qkv));
  at::Tensor scaled = qkv.view({tokens, 4, 3, 16}).clone();
  scaled.select(2, 0) *= 1.001;  // the scale of the scores
  REQUIRE(noticed(shape, scaled.view(qkv.sizes())));
  at::Tensor hidden = qkv.clone();
  hidden[300].zero_();
  REQUIRE(noticed(shape, hidden));
}

TEST_CASE("the bounds of attention in bf16 notice a lost scale, mask and factor", "[kernels]") {
  const std::int64_t tokens = 197;
  test::Random random(5);
  const ops::AttentionShape shape{
      .batch = 1, .heads = 6, .kv_heads = 2, .head_dim = 8, .causal = true};
  const at::Tensor qkv = random({tokens, shape.qkv_width()}, at::kBFloat16),
                   dy = random({tokens, shape.width()}, at::kBFloat16);
  const auto bounds = test::attention_bounds(qkv, dy, shape, {tokens});
  const auto noticed = [&](const ops::AttentionShape& other, double query_factor, double factor) {
    const at::Tensor leaf = test::exact(qkv),
                     changed = at::cat({leaf.narrow(1, 0, shape.width()) * query_factor,
                                        leaf.narrow(1, shape.width(), 2 * 2 * 8)},
                                       1),
                     out = test::plain_attention(changed, other, {tokens});
    out.backward(dy.to(at::kDouble));
    return far(out * factor, bounds.out) != "" && far(leaf.grad() * factor, bounds.grad) != "";
  };
  REQUIRE_FALSE(noticed(shape, 1, 1));
  REQUIRE(noticed(shape, std::sqrt(8.0), 1));
  REQUIRE(noticed(shape, 1, 1.2));
  ops::AttentionShape other = shape;
  other.causal = false;
  REQUIRE(noticed(other, 1, 1));
}

TEST_CASE("the bounds of the optimizers notice a step's correction and the decay", "[kernels]") {
  test::Random random(6);
  const at::Tensor zero = at::zeros({1000}), start = random({1000});
  test::AdamBounds right{start, zero, zero}, late = right, decayed = right;
  test::SgdBounds plain{start, zero}, other = plain;
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor gradient = random({1000});
    right.step(gradient, step, 1e-2, 0.9, 0.95, 1e-8, 0.1);
    late.step(gradient, step + 1, 1e-2, 0.9, 0.95, 1e-8, 0.1);
    decayed.step(gradient, step, 1e-2, 0.9, 0.95, 1e-8, 0.101);
    plain.step(gradient, 0.1, 0.9, 0.01);
    other.step(gradient, 0.1, 0.9, 0.0101);
  }
  REQUIRE(far(late.master.value, right.master) != "");
  REQUIRE(far(decayed.master.value, right.master) != "");
  REQUIRE(far(other.master.value, plain.master) != "");
}

}  // namespace
}  // namespace dstrain
