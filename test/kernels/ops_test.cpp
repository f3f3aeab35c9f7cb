#include "engine/kernels/ops.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>

#include "engine/base/error.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

using test::exact;
using test::far;
using test::leaf;

TEST_CASE("linear equals addmm and its gradients", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 7, 197 * 3);
  CAPTURE(c10::toString(dtype), rows);
  test::Random random(1);
  const at::Tensor x = leaf(random({rows, 24}, dtype)), dy = random({rows, 10}, dtype);
  Parameter weight = random.parameter({10, 2, 3, 4}, dtype), bias = random.parameter({10}, dtype);
  const at::Tensor x64 = exact(x), weight64 = exact(weight.value), bias64 = exact(bias.value);

  const at::Tensor y = ops::linear(x, weight, &bias);
  y.backward(dy);
  const at::Tensor y64 = at::addmm(bias64, x64, weight64.view({10, 24}).t());
  y64.backward(dy.to(at::kDouble));
  REQUIRE(far(y, y64, dtype, 24) == "");
  REQUIRE(far(x.grad(), x64.grad(), dtype, 10) == "");
  REQUIRE(far(weight.gradient, weight64.grad(), at::kFloat, rows) == "");
  REQUIRE(far(bias.gradient, bias64.grad(), at::kFloat, rows) == "");

  ops::linear(x, weight, &bias).backward(dy);  // gradients add up
  REQUIRE(far(weight.gradient, weight64.grad() * 2, at::kFloat, rows) == "");
  REQUIRE(far(bias.gradient, bias64.grad() * 2, at::kFloat, rows) == "");
}

TEST_CASE("linear_gelu equals the exact GELU of addmm and its gradients", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  CAPTURE(c10::toString(dtype));
  test::Random random(2);
  const at::Tensor x = leaf(random({21, 16}, dtype)), dy = random({21, 40}, dtype);
  Parameter weight = random.parameter({40, 16}, dtype), bias = random.parameter({40}, dtype);
  const at::Tensor x64 = exact(x), weight64 = exact(weight.value), bias64 = exact(bias.value);

  const at::Tensor y = ops::linear_gelu(x, weight, bias, ops::Gelu::erf);
  y.backward(dy);
  const at::Tensor y64 = at::gelu(at::addmm(bias64, x64, weight64.t()));
  y64.backward(dy.to(at::kDouble));
  REQUIRE(far(y, y64, dtype, 16) == "");
  REQUIRE(far(x.grad(), x64.grad(), dtype, 40) == "");
  REQUIRE(far(weight.gradient, weight64.grad(), dtype, 21) == "");  // of dz, which is rounded
  REQUIRE(far(bias.gradient, bias64.grad(), dtype, 21) == "");
}

TEST_CASE("an operator reaches its weights although its input needs no gradient", "[kernels]") {
  test::Random random(3);
  const at::Tensor x = random({5, 8});
  Parameter weight = random.parameter({3, 8}, at::kFloat), bias = random.parameter({3}, at::kFloat);
  ops::linear(x, weight, &bias).sum().backward();
  REQUIRE(far(weight.gradient, x.sum(0).expand({3, 8}), at::kFloat, 5) == "");
  REQUIRE(far(bias.gradient, at::zeros_like(bias.value) + 5, at::kFloat, 5) == "");
}

TEST_CASE("backward reads the parameter where it then lies", "[kernels]") {
  test::Random random(4);
  const at::Tensor x = leaf(random({5, 8}));
  Parameter weight = random.parameter({3, 8}, at::kFloat), bias = random.parameter({3}, at::kFloat);
  const at::Tensor y = ops::linear(x, weight, &bias);
  const at::Tensor gathered_anew = weight.value.clone();
  weight.value.fill_(std::numeric_limits<float>::quiet_NaN());
  weight.value = gathered_anew;
  y.sum().backward();
  REQUIRE(far(x.grad(), gathered_anew.sum(0).expand({5, 8}), at::kFloat, 3) == "");
}

TEST_CASE("add_layer_norm equals layer_norm of the sum, residual gradient included", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool with_delta = GENERATE(false, true);
  CAPTURE(c10::toString(dtype), with_delta);
  test::Random random(5);
  const std::int64_t rows = 23, dim = 40;
  const at::Tensor x = leaf(random({rows, dim}, dtype)), delta = leaf(random({rows, dim}, dtype));
  const at::Tensor dsum = random({rows, dim}, dtype), dy = random({rows, dim}, dtype);
  Parameter weight = random.parameter({dim}, dtype), bias = random.parameter({dim}, dtype);
  const at::Tensor x64 = exact(x), delta64 = exact(delta), weight64 = exact(weight.value),
                   bias64 = exact(bias.value);

  const auto [sum, y] =
      ops::add_layer_norm(x, with_delta ? std::optional(delta) : std::nullopt, weight, bias, 1e-6);
  ((sum * dsum).sum() + (y * dy).sum()).backward();
  const at::Tensor sum64 = with_delta ? x64 + delta64 : x64;
  const at::Tensor y64 = at::layer_norm(sum64, {dim}, weight64, bias64, 1e-6);
  ((sum64 * dsum.to(at::kDouble)).sum() + (y64 * dy.to(at::kDouble)).sum()).backward();
  REQUIRE(far(sum, sum64, dtype, 1) == "");
  REQUIRE(far(y, y64, dtype, dim) == "");
  REQUIRE(far(x.grad(), x64.grad(), dtype, dim) == "");
  if (with_delta) REQUIRE(far(delta.grad(), delta64.grad(), dtype, dim) == "");
  REQUIRE(far(weight.gradient, weight64.grad(), dtype, rows) == "");
  REQUIRE(far(bias.gradient, bias64.grad(), at::kFloat, rows) == "");
}

TEST_CASE("add_layer_norm works when only one of its results is used", "[kernels]") {
  test::Random random(6);
  const at::Tensor x = leaf(random({4, 16})), x64 = exact(x);
  Parameter weight = random.parameter({16}, at::kFloat), bias = random.parameter({16}, at::kFloat);
  ops::add_layer_norm(x, std::nullopt, weight, bias, 1e-6).second.pow(2).sum().backward();
  at::layer_norm(x64, {16}, weight.value.to(at::kDouble), bias.value.to(at::kDouble), 1e-6)
      .pow(2)
      .sum()
      .backward();
  REQUIRE(far(x.grad(), x64.grad(), at::kFloat, 64) == "");

  const at::Tensor z = leaf(random({4, 16}));
  ops::add_layer_norm(z, std::nullopt, weight, bias, 1e-6).first.sum().backward();
  REQUIRE(z.grad().eq(1).all().item<bool>());
}

TEST_CASE("patchify and linear equal the convolution", "[kernels]") {
  test::Random random(7);
  const std::int64_t patch = GENERATE(2, 4);
  const at::Tensor images = random({3, 2, 8, 12});
  Parameter weight = random.parameter({5, 2, patch, patch}, at::kFloat),
            bias = random.parameter({5}, at::kFloat);
  const at::Tensor y = ops::linear(ops::patchify(images, patch), weight, &bias);
  const at::Tensor expected = at::conv2d(images, weight.value, bias.value, patch);
  REQUIRE(far(y, expected.flatten(2).transpose(1, 2).reshape(y.sizes()), at::kFloat,
              2 * patch * patch) == "");
}

TEST_CASE("embed_sequence and first_token with their gradients", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  test::Random random(8);
  const std::int64_t batch = 3, tokens = 6, dim = 8;
  const at::Tensor patches = leaf(random({batch * (tokens - 1), dim}, dtype));
  Parameter token = random.parameter({1, 1, dim}, dtype),
            positions = random.parameter({1, tokens, dim}, dtype);
  const at::Tensor patches64 = exact(patches), token64 = exact(token.value),
                   positions64 = exact(positions.value);
  const at::Tensor dy = random({batch * tokens, dim}, dtype), dfirst = random({batch, dim}, dtype);

  const at::Tensor y = ops::embed_sequence(patches, batch, token, positions);
  const at::Tensor first = ops::first_token(y, batch);
  ((y * dy).sum() + (first * dfirst).sum()).backward();
  const at::Tensor y64 =
      (at::cat({token64.expand({batch, 1, dim}), patches64.view({batch, tokens - 1, dim})}, 1) +
       positions64);
  ((y64.view(dy.sizes()) * dy.to(at::kDouble)).sum() +
   (y64.select(1, 0) * dfirst.to(at::kDouble)).sum())
      .backward();
  REQUIRE(far(y, y64.view(y.sizes()), dtype, 1) == "");
  REQUIRE(first.equal(y.view({batch, tokens, dim}).select(1, 0)));
  REQUIRE(far(patches.grad(), patches64.grad(), dtype, 1) == "");
  REQUIRE(far(token.gradient, token64.grad(), dtype, batch) == "");
  REQUIRE(far(positions.gradient, positions64.grad(), dtype, batch) == "");
}

TEST_CASE("wrong shapes and released parameters are internal errors that name them", "[kernels]") {
  test::Random random(9);
  Parameter weight = random.parameter({3, 8}, at::kFloat), bias = random.parameter({3}, at::kFloat);
  const auto message = [&](const at::Tensor& x) {
    try {
      (void)ops::linear(x, weight, &bias);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::internal);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  REQUIRE(message(random({5, 7})).find("x [5, 7], weight [3, 8], bias [3]") != std::string::npos);
  weight.value = at::Tensor();
  REQUIRE(message(random({5, 8})).find("'test' is used while released") != std::string::npos);
}

}  // namespace
}  // namespace dstrain
