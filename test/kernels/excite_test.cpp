#include <ATen/ops/conv2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>

#include "engine/base/error.h"
#include "engine/kernels/activation/ops_drop_path.h"
#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/excite/ops_excite.h"
#include "test/kernels/bounds.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

// Squeeze and excitation, stochastic depth.

namespace dstrain {
namespace {

using test::Bounded;
using test::exact;
using test::far;
using test::leaf;

TEST_CASE("excited_conv equals the convolution of the scaled image and its gradients",
          "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto kind = GENERATE(ops::Gate::sigmoid, ops::Gate::hard_sigmoid);
  const bool hard = kind == ops::Gate::hard_sigmoid;
  CAPTURE(c10::toString(dtype), hard);
  constexpr std::int64_t kSamples = 3, kPixels = 5 * 4, kIn = 6, kOut = 7;
  test::Random random(1);
  const at::Tensor x = leaf(random({kSamples, 5, 4, kIn}, dtype)),
                   z = leaf(random({kSamples, kIn}, dtype).mul(3)),
                   dy = random({kSamples, 5, 4, kOut}, dtype);
  Parameter weight = random.parameter({kOut, kIn, 1, 1}, dtype);
  const ops::ConvShape shape = {.in = kIn, .out = kOut};
  const at::Tensor y = ops::excited_conv(x, z, kind, shape, weight);
  y.backward(dy);

  const at::Tensor x64 = exact(x), z64 = exact(z), w64 = exact(weight.value);
  const at::Tensor open64 = (hard ? at::hardsigmoid(z64) : at::sigmoid(z64));
  const at::Tensor y64 =
      at::conv2d((x64 * open64.view({kSamples, 1, 1, kIn})).permute({0, 3, 1, 2}), w64)
          .permute({0, 2, 3, 1});
  y64.backward(dy.to(at::kDouble));

  const at::Tensor matrix = weight.value.view({kOut, kIn});
  // The gate is computed from an exact z; its slope is s (1 - s), or 1 / 6.
  const Bounded open = [&] {
    const Bounded number(z);
    const at::Tensor value = open64.detach();
    return viewed(applied(number, value, at::ones_like(value), value * (2 * test::kExpError)),
                  [&](const at::Tensor& t) {
                    return t.unsqueeze(1).expand({kSamples, kPixels, kIn}).reshape({-1, kIn});
                  });
  }();
  const auto rows = [](const at::Tensor& t) { return t.reshape({-1, t.size(-1)}); };
  const Bounded xs(rows(x)), dys(rows(dy));
  const Bounded scaled = rounded(xs * open, dtype);
  REQUIRE(far(rows(y), rows(y64), rounded(test::times(scaled, matrix, dtype), dtype)) == "");
  const auto shaped = [](const at::Tensor& t) { return t.view({kOut, kIn, 1, 1}); };
  REQUIRE(far(weight.gradient, w64.grad(), viewed(test::weight_gradient(dys, scaled), shaped)) ==
          "");
  const Bounded d = test::input_gradient(dys, matrix, dtype);
  REQUIRE(far(rows(x.grad()), rows(x64.grad()), rounded(d * open, dtype)) == "");
  const auto by_sample = [](const at::Tensor& t) { return t.view({kSamples, kPixels, kIn}); };
  const Bounded sums =
      viewed(sum(viewed(d * xs, by_sample), 1), [](const at::Tensor& t) { return t.squeeze(1); });
  const at::Tensor wide = z.detach().to(at::kDouble), ones = at::ones_like(wide);
  const at::Tensor slope =
      hard ? at::hardsigmoid_backward(ones, wide) : at::sigmoid_backward(ones, open64.detach());
  // s (1 - s) cancels where s is near 1: its error is one of s.
  const Bounded bounded_slope{slope, open64.detach() * (4 * test::kExpError)};
  REQUIRE(far(z.grad(), z64.grad(), rounded(sums * bounded_slope, dtype)) == "");
}

TEST_CASE("excited_conv reaches its weight although its inputs need no gradient", "[kernels]") {
  test::Random random(2);
  const at::Tensor x = random({2, 3, 3, 4}), z = random({2, 4});
  Parameter weight = random.parameter({5, 4, 1, 1}, at::kFloat);
  ops::excited_conv(x, z, ops::Gate::sigmoid, {.in = 4, .out = 5}, weight).sum().backward();
  REQUIRE(weight.gradient.abs().sum().item<float>() > 0);
  REQUIRE_THROWS_AS(
      ops::excited_conv(x, z.narrow(1, 0, 3), ops::Gate::sigmoid, {.in = 4, .out = 5}, weight),
      Error);
}

TEST_CASE("drop_path leaves out whole samples by the seed", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  constexpr std::int64_t kSamples = 400;
  constexpr double kShare = 0.25;
  test::Random random(3);
  const auto mask = [&](std::int64_t seed, std::uint64_t place) {
    return ops::DropMask{
        .share = kShare, .seed = at::scalar_tensor(seed, at::kLong), .place = place};
  };
  const at::Tensor x = leaf(random({kSamples, 2, 3, 4}, dtype)),
                   residual = leaf(random({kSamples, 2, 3, 4}, dtype)),
                   dy = random({kSamples, 2, 3, 4}, dtype);
  const at::Tensor y = ops::drop_path(x, kSamples, mask(7, 1), residual);
  y.backward(dy);
  const at::Tensor factors = ops::drop(at::ones({kSamples}), mask(7, 1));
  const double kept = factors.gt(0).to(at::kFloat).mean().item<double>();
  // Four standard deviations of the number of samples kept.
  CHECK(std::abs(kept - (1 - kShare)) < 4 * std::sqrt(kShare * (1 - kShare) / kSamples));
  CHECK(factors.max().item<float>() == Approx(1 / (1 - kShare)));
  const auto scaled = [&](const at::Tensor& t) {
    return Bounded(t) * Bounded(factors.view({kSamples, 1, 1, 1}).expand_as(t));
  };
  CHECK(far(y, rounded(scaled(x) + Bounded(residual), dtype)) == "");
  CHECK(far(x.grad(), rounded(scaled(dy), dtype)) == "");
  CHECK(residual.grad().equal(dy));
  const auto same = [&](const at::Tensor& other) { return other.equal(y); };
  CHECK(same(ops::drop_path(x, kSamples, mask(7, 1), residual)));
  CHECK(!same(ops::drop_path(x, kSamples, mask(8, 1), residual)));
  CHECK(!same(ops::drop_path(x, kSamples, mask(7, 2), residual)));
  // Rows of tokens: those of a sample have its factor.
  const at::Tensor tokens = ops::drop_path(x.view({kSamples * 2, 12}), kSamples, mask(7, 1));
  CHECK(tokens.view({kSamples, -1}).ne(0).any(1).equal(factors.gt(0)));
}

}  // namespace
}  // namespace dstrain
