#include "engine/kernels/linear/fp8.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/swiglu.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// FP8 as the CPU computes it: rounded to eight bits, multiplied in fp32.
namespace dstrain {
namespace {

using kernels::Fp8Format;
using ops::Sides;
using test::Bounded;
using test::far;
using test::leaf;

at::Tensor decoded(const at::Tensor& codes, const at::Tensor& scale) {
  return codes.to(at::kFloat) * scale;
}

TEST_CASE("quantize keeps all to half a step, and the largest of values exactly",
          "[kernels][fp8]") {
  const auto format = GENERATE(Fp8Format::e4m3, Fp8Format::e5m2);
  const double step = format == Fp8Format::e4m3 ? 0x1p-4 : 0x1p-3;        // half of it, relative
  const double smallest = format == Fp8Format::e4m3 ? 0x1p-10 : 0x1p-17;  // half of it, of scale
  test::Random random(1);
  const at::Tensor x = random({32, 48}) * 1e-3;
  const auto q = ops::quantize(x, format, Sides::both);
  const at::Tensor error = (decoded(q.rows, q.scale) - x).abs();
  const at::Tensor max = x.abs().max();
  // Roundings to fp32: of the scale, its inverse, the product with each, and the limits here.
  const double fp32 = 1 + test::gamma(8);
  REQUIRE(error.le(x.abs() * (step * fp32 + test::gamma(8)) + q.scale * (smallest * fp32))
              .all()
              .item<bool>());
  if (format == Fp8Format::e4m3)
    REQUIRE(far(decoded(q.rows, q.scale).abs().max(), rounded(rounded(Bounded(max)))) == "");
  REQUIRE(decoded(q.columns, q.scale).equal(decoded(q.rows, q.scale).t()));
}

TEST_CASE("codes of gradients stand for the same numbers whatever bound gives their scale",
          "[kernels][fp8]") {
  test::Random random(6);
  const at::Tensor x = random({32, 48}) * 1e-3, max = x.abs().max();
  const auto exact = ops::quantize(x, Fp8Format::e5m2, Sides::rows);
  const float scale = exact.scale.item<float>();
  REQUIRE(std::exp2(std::round(std::log2(scale))) == scale);
  REQUIRE(scale * 57344 >= max.item<float>());
  REQUIRE(scale * 28672 < max.item<float>());
  for (const double loose : {1.0, 1.1, 37.0, 5000.0}) {
    CAPTURE(loose);
    const auto bound = ops::quantize(x, Fp8Format::e5m2, Sides::rows, {.maxima = max * loose});
    // Smaller ones are no normal numbers of e5m2.
    const at::Tensor normal = x.abs().ge(bound.scale * 0x1p-14);
    REQUIRE(normal.to(at::kFloat).mean().item<float>() > 0.99f);
    REQUIRE(decoded(bound.rows, bound.scale).equal(decoded(exact.rows, exact.scale)) ==
            normal.all().item<bool>());
    REQUIRE((decoded(bound.rows, bound.scale) * normal)
                .equal(decoded(exact.rows, exact.scale) * normal));
  }
}

TEST_CASE("quantize rounds to the nearest code, ties to even", "[kernels][fp8]") {
  const std::vector<float> values = {448, 1, 1.0625f, 1.1875f, 1.125f, 0x1p-9f, 0x1p-10f, -0.0f};
  const std::vector<float> expected = {448, 1, 1, 1.25f, 1.125f, 0x1p-9f, 0, -0.0f};
  const at::Tensor x = at::tensor(at::ArrayRef<float>(values)).repeat({16, 2});
  const auto q = ops::quantize(x, Fp8Format::e4m3, Sides::rows);
  REQUIRE(q.scale.item<float>() == 1);
  REQUIRE_FALSE(q.columns.defined());
  for (std::size_t i = 0; i < values.size(); ++i)
    REQUIRE(q.rows.to(at::kFloat)[0][static_cast<std::int64_t>(i)].item<float>() == expected[i]);
}

TEST_CASE("nothing but zeros, and values beyond a known scale, stay finite", "[kernels][fp8]") {
  const auto zeros = ops::quantize(at::zeros({16, 16}), Fp8Format::e4m3, Sides::rows);
  REQUIRE(decoded(zeros.rows, zeros.scale).eq(0).all().item<bool>());
  const at::Tensor one = at::full({}, 1, at::kFloat);
  const auto clipped = ops::quantize(at::full({16, 16}, 1e6, at::kFloat), Fp8Format::e4m3,
                                     Sides::rows, {.scale = one});
  REQUIRE(clipped.rows.to(at::kFloat).eq(448).all().item<bool>());
}

TEST_CASE("largest values that are known give the scale that is searched for", "[kernels][fp8]") {
  test::Random random(5);
  const at::Tensor x = random({32, 48}), maxima = x.abs().view({16, 96}).amax({1});
  const auto searched = ops::quantize(x, Fp8Format::e4m3, Sides::both),
             known = ops::quantize(x, Fp8Format::e4m3, Sides::both, {.maxima = maxima});
  REQUIRE(known.scale.equal(searched.scale));
  REQUIRE(known.rows.view(at::kByte).equal(searched.rows.view(at::kByte)));
  REQUIRE(known.columns.view(at::kByte).equal(searched.columns.view(at::kByte)));
  const auto twice = ops::quantize(x, Fp8Format::e4m3, Sides::both, {.maxima = maxima * 2});
  REQUIRE(twice.scale.equal(searched.scale * 2));
}

struct Layer {
  explicit Layer(at::ScalarType dtype) {
    test::Random random(2);
    x = leaf(random({32, 48}, dtype));
    dy = random({32, 16}, dtype) * 1e-2;
    weight = random.parameter({16, 48}, dtype);
    bias = random.parameter({16}, dtype);
    weight.fp8 = true;
  }
  at::Tensor x, dy;
  Parameter weight, bias;
};

TEST_CASE("an input that backward makes again is not kept, and its product is the same",
          "[kernels][fp8]") {
  Layer layer(at::kFloat);
  layer.weight.fp8 = GENERATE(true, false);
  const at::Tensor x = layer.x.detach();
  const auto kept = ops::apply_linear(x, layer.weight, &layer.bias),
             again = ops::apply_linear(x, layer.weight, &layer.bias, ops::Keep::nothing);
  REQUIRE(kept.kept.defined());
  REQUIRE_FALSE(again.kept.defined());
  REQUIRE(again.y.equal(kept.y));
  REQUIRE(again.scale.defined() == layer.weight.fp8);
  if (layer.weight.fp8) REQUIRE(again.scale.equal(kept.scale));
}

TEST_CASE("sizes that are no multiples of 16 stay in the compute dtype", "[kernels][fp8]") {
  test::Random random(3);
  const auto [rows, in, out] =
      GENERATE(std::tuple{31, 32, 16}, std::tuple{32, 24, 16}, std::tuple{32, 32, 10});
  const at::Tensor x = random({rows, in});
  Parameter weight = random.parameter({out, in}, at::kFloat);
  weight.trainable = false;
  const at::Tensor plain_y = ops::linear(x, weight, nullptr);
  weight.fp8 = true;
  REQUIRE(ops::linear(x, weight, nullptr).equal(plain_y));
}

TEST_CASE("swiglu_linear in FP8 equals swiglu and linear in FP8", "[kernels][fp8]") {
  test::Random random(4);
  const at::Tensor a = leaf(random({32, 96})), b = leaf(a), dy = random({32, 16});
  Parameter one = random.parameter({16, 48}, at::kFloat), other = one;
  one.fp8 = other.fp8 = true;
  other.gradient = at::zeros({16, 48});
  ops::swiglu_linear(a, one).backward(dy);
  ops::linear(test::swiglu(b), other, nullptr).backward(dy);
  REQUIRE(a.grad().equal(b.grad()));
  REQUIRE(one.gradient.equal(other.gradient));
}

TEST_CASE("a frozen FP8 weight passes the gradient on", "[kernels][fp8]") {
  Layer layer(at::kFloat), trained(at::kFloat);
  layer.weight.trainable = false;
  layer.weight.gradient = at::Tensor();
  ops::linear(layer.x, layer.weight, &layer.bias).backward(layer.dy);
  ops::linear(trained.x, trained.weight, &trained.bias).backward(trained.dy);
  REQUIRE(layer.x.grad().equal(trained.x.grad()));
  REQUIRE(layer.bias.gradient.equal(trained.bias.gradient));
}

TEST_CASE("codes of a weight are kept while its version stays, and made anew after",
          "[kernels][fp8]") {
  Layer layer(at::kFloat);
  Parameter& weight = layer.weight;
  const auto run = [&] { return ops::linear(layer.x, weight, nullptr).detach(); };
  const at::Tensor first = run();
  REQUIRE_FALSE(weight.fp8_copies.rows.defined());  // versions are not counted
  weight.version = 1;
  REQUIRE(run().equal(first));
  REQUIRE(weight.fp8_copies.rows.defined());
  const at::Tensor value = weight.value.clone();
  weight.value.mul_(2);
  REQUIRE(run().equal(first));
  weight.version = 2;
  const at::Tensor second = run();
  REQUIRE(second.equal(first * 2));  // a power of two changes the scale alone
  weight.fp8_copies = {};
  REQUIRE(run().equal(second));
}

}  // namespace
}  // namespace dstrain
