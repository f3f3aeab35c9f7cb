#include "engine/kernels/ops.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>

#include "engine/base/error.h"
#include "test/kernels/bounds.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Bounded;
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
  const at::Tensor matrix = weight.value.view({10, 24});
  const auto shaped = [&](const at::Tensor& t) { return t.view({10, 2, 3, 4}); };
  const Bounded dweight = viewed(test::weight_gradient(dy, x), shaped), dbias = test::row_sum(dy);
  REQUIRE(far(y, y64, rounded(test::times(x, matrix, dtype) + bias.value, dtype)) == "");
  REQUIRE(far(x.grad(), x64.grad(), test::input_gradient(dy, matrix, dtype)) == "");
  REQUIRE(far(weight.gradient, weight64.grad(), dweight) == "");
  REQUIRE(far(bias.gradient, bias64.grad(), dbias) == "");

  ops::linear(x, weight, &bias).backward(dy);  // gradients add up
  REQUIRE(far(weight.gradient, weight64.grad() * 2, dweight + dweight) == "");
  REQUIRE(far(bias.gradient, bias64.grad() * 2, dbias + dbias) == "");
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
  const Bounded z = test::times(x, weight.value, dtype) + bias.value,
                dz = dy * test::gelu_slope(z, ops::Gelu::erf), narrow = rounded(dz, dtype);
  REQUIRE(far(y, y64, rounded(test::gelu(z, ops::Gelu::erf), dtype)) == "");
  REQUIRE(far(x.grad(), x64.grad(), test::input_gradient(narrow, weight.value, dtype)) == "");
  REQUIRE(far(weight.gradient, weight64.grad(), test::weight_gradient(narrow, x)) == "");
  REQUIRE(far(bias.gradient, bias64.grad(), test::row_sum(dz)) == "");
}

TEST_CASE("an operator reaches its weights although its input needs no gradient", "[kernels]") {
  test::Random random(3);
  const at::Tensor x = random({5, 8});
  Parameter weight = random.parameter({3, 8}, at::kFloat), bias = random.parameter({3}, at::kFloat);
  ops::linear(x, weight, &bias).sum().backward();
  const at::Tensor dy = at::ones({5, 3});
  REQUIRE(far(weight.gradient, test::weight_gradient(dy, x)) == "");
  REQUIRE(bias.gradient.eq(5).all().item<bool>());
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
  const at::Tensor dy = at::ones({5, 3});
  REQUIRE(far(x.grad(), test::input_gradient(dy, gathered_anew, at::kFloat)) == "");
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
  const Bounded exact_sum = with_delta ? rounded(Bounded(x) + delta, dtype) : Bounded(x);
  const test::NormBounds norm =
      test::layer_norm(exact_sum, weight.value, bias.value, 1e-6, dy, dtype);
  const Bounded dx = rounded(norm.dx + dsum, dtype);
  REQUIRE(far(sum, sum64, exact_sum) == "");
  REQUIRE(far(y, y64, norm.y) == "");
  REQUIRE(far(x.grad(), x64.grad(), dx) == "");
  if (with_delta) REQUIRE(far(delta.grad(), delta64.grad(), dx) == "");
  REQUIRE(far(weight.gradient, weight64.grad(), norm.dweight) == "");
  REQUIRE(far(bias.gradient, bias64.grad(), test::row_sum(dy)) == "");
}

TEST_CASE("add_layer_norm works when only one of its results is used", "[kernels]") {
  test::Random random(6);
  const at::Tensor x = leaf(random({4, 16})), x64 = exact(x);
  Parameter weight = random.parameter({16}, at::kFloat), bias = random.parameter({16}, at::kFloat);
  const at::Tensor dy = random({4, 16});
  ops::add_layer_norm(x, std::nullopt, weight, bias, 1e-6).second.backward(dy);
  at::layer_norm(x64, {16}, weight.value.to(at::kDouble), bias.value.to(at::kDouble), 1e-6)
      .backward(dy.to(at::kDouble));
  const auto norm = test::layer_norm(x, weight.value, bias.value, 1e-6, dy, at::kFloat);
  REQUIRE(far(x.grad(), x64.grad(), norm.dx) == "");

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
  const at::Tensor patches = ops::patchify(images, patch), y = ops::linear(patches, weight, &bias);
  const at::Tensor expected = at::conv2d(images.to(at::kDouble), weight.value.to(at::kDouble),
                                         bias.value.to(at::kDouble), patch);
  REQUIRE(far(y, expected.flatten(2).transpose(1, 2).reshape(y.sizes()),
              test::times(patches, weight.value.flatten(1), at::kFloat) + bias.value) == "");
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

  const at::Tensor y = ops::embed_sequence(patches, batch, &token, positions);
  const at::Tensor first = ops::first_token(y, batch);
  ((y * dy).sum() + (first * dfirst).sum()).backward();
  const at::Tensor y64 =
      (at::cat({token64.expand({batch, 1, dim}), patches64.view({batch, tokens - 1, dim})}, 1) +
       positions64);
  ((y64.view(dy.sizes()) * dy.to(at::kDouble)).sum() +
   (y64.select(1, 0) * dfirst.to(at::kDouble)).sum())
      .backward();
  REQUIRE(far(y, rounded(Bounded(y64.view(y.sizes())), dtype)) == "");
  REQUIRE(first.equal(y.view({batch, tokens, dim}).select(1, 0)));
  // The first token has two gradients, which are added in dtype.
  at::Tensor first_too = at::zeros({batch, tokens, dim}, dtype);
  first_too.select(1, 0).copy_(dfirst);
  const Bounded both = rounded(Bounded(dy.view({batch, tokens, dim})) + first_too, dtype);
  const Bounded dpositions = sum(both, 0);
  const auto rest = [&](const at::Tensor& t) {
    return t.narrow(1, 1, tokens - 1).reshape(patches.sizes());
  };
  REQUIRE(far(patches.grad(), patches64.grad(), viewed(both, rest)) == "");
  REQUIRE(far(token.gradient, token64.grad(), narrowed(dpositions, 1, 0, 1)) == "");
  REQUIRE(far(positions.gradient, positions64.grad(), dpositions) == "");
}

TEST_CASE("embed_sequence takes any number of first tokens, and positions of another grid",
          "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const std::int64_t first = GENERATE(0, 1, 2), side = GENERATE(3, 4, 7);
  CAPTURE(c10::toString(dtype), first, side);
  test::Random random(10);
  const std::int64_t batch = 2, from = 4, dim = 8, tokens = first + side * side;
  const ops::PositionGrid grid{.from = from, .to = side};
  const at::Tensor patches = leaf(random({batch * side * side, dim}, dtype));
  Parameter token = random.parameter({std::max<std::int64_t>(first, 1), dim}, dtype),
            positions = random.parameter({first + from * from, dim}, dtype);
  const at::Tensor patches64 = exact(patches), token64 = exact(token.value),
                   positions64 = exact(positions.value), dy = random({batch * tokens, dim}, dtype);
  const at::Tensor y =
      ops::embed_sequence(patches, batch, first > 0 ? &token : nullptr, positions, grid);
  y.backward(dy);
  // As transformers reads it, in double.
  const at::Tensor square =
      positions64.narrow(0, first, from * from).view({1, from, from, dim}).permute({0, 3, 1, 2});
  const at::Tensor resized = at::upsample_bicubic2d(square, {side, side}, false)
                                 .permute({0, 2, 3, 1})
                                 .reshape({side * side, dim});
  at::Tensor rows64 = patches64.view({batch, side * side, dim});
  if (first > 0) rows64 = at::cat({token64.expand({batch, first, dim}), rows64}, 1);
  const at::Tensor y64 = rows64 + at::cat({positions64.narrow(0, 0, first), resized}, 0);
  y64.view(dy.sizes()).backward(dy.to(at::kDouble));
  const double unit = dtype == at::kFloat ? 0x1p-24 : 0x1p-8;
  // A position is a sum of 16 products, of weights that are rounded themselves and whose absolute
  // values add up to less than 2.
  const auto close = [&](const at::Tensor& found, const at::Tensor& wanted, double terms) {
    const double max = wanted.abs().max().item<double>();
    return (found.to(at::kDouble) - wanted).abs().max().item<double>() <= terms * unit * max;
  };
  CHECK(close(y, y64.view(y.sizes()), 40));
  CHECK(close(patches.grad(), patches64.grad(), 1));
  // Gradients of weights are sums in fp32 of gradients in dtype.
  CHECK((positions.gradient - positions64.grad()).abs().max().item<double>() <= 1e-5);
  if (first > 0) CHECK((token.gradient - token64.grad()).abs().max().item<double>() <= 1e-5);
}

TEST_CASE("mean_token with its gradient", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const std::int64_t first = GENERATE(0, 1, 2);
  const bool row_too = GENERATE(false, true);
  CAPTURE(c10::toString(dtype), first, row_too);
  test::Random random(11);
  const std::int64_t batch = 3, tokens = 6, dim = 8;
  const at::Tensor x = leaf(random({batch * tokens, dim}, dtype)), x64 = exact(x),
                   dy = random({batch, row_too ? 2 * dim : dim}, dtype);
  const at::Tensor y = ops::mean_token(x, batch, first, row_too);
  y.backward(dy);
  const at::Tensor rows = x64.view({batch, tokens, dim});
  at::Tensor y64 = rows.narrow(1, first, tokens - first).mean(1);
  if (row_too) y64 = at::cat({rows.select(1, 0), y64}, 1);
  y64.backward(dy.to(at::kDouble));
  const double unit = dtype == at::kFloat ? 0x1p-22 : 0x1p-7;
  CHECK((y.to(at::kDouble) - y64).abs().max().item<double>() <=
        unit * x.abs().max().item<double>());
  CHECK((x.grad().to(at::kDouble) - x64.grad()).abs().max().item<double>() <=
        2 * unit * dy.abs().max().item<double>());
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
