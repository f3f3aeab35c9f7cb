#include "engine/kernels/gradient_sink.h"

#include <ATen/ops/full.h>

#include "engine/base/error.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// What is put into the gradient of a parameter, in which format and when.
namespace dstrain {
namespace {

using ops::GradientSink;

/// A weight [4, 8] whose gradient of `type` is full of sevens.
Parameter sevens(at::ScalarType type) {
  Parameter weight = test::Random(1).parameter({4, 8}, at::kBFloat16);
  weight.gradient = at::full({4, 8}, 7, type);
  return weight;
}

TEST_CASE("a sink overwrites an empty gradient, adds to others and says so", "[kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(c10::toString(type));
  const at::Tensor x = at::full({3, 8}, 2, at::kBFloat16), dy = at::full({3, 4}, 1, at::kBFloat16);
  Parameter weight = sevens(type);
  const GradientSink sink(weight, x);
  const auto holds = [&](double value) {
    return weight.gradient.to(at::kFloat).equal(at::full({4, 8}, value, at::kFloat));
  };
  weight.gradient_state = GradientState::empty;
  sink.product(dy.t(), x);
  REQUIRE(holds(6));
  sink.product(dy.t(), x, {.alpha = 0.5});
  REQUIRE(holds(9));
  weight.output_scale = 2;
  sink.product(dy.t(), x);
  REQUIRE(holds(21));
  REQUIRE(ops::settle_gradient(weight));
  REQUIRE_FALSE(ops::settle_gradient(weight));

  weight.gradient_state = GradientState::empty;
  sink.add(at::full({8, 4}, 3, at::kFloat));
  sink.add(at::full({32}, 1, at::kFloat));
  REQUIRE(holds(4));

  weight.gradient_state = GradientState::empty;
  const ops::Fp32Sum sum = sink.fp32();
  REQUIRE_FALSE(sum.write());
  for (int i = 0; i < 32; ++i) sum.data()[i] += 5;
  sum.finish();
  REQUIRE(holds(5));

  weight.gradient_state = GradientState::empty;
  REQUIRE(sink.any_format().is_same(weight.gradient));
  REQUIRE(holds(0));

  weight.gradient.fill_(7);
  weight.gradient_state = GradientState::empty;
  REQUIRE_FALSE(ops::settle_gradient(weight));
  REQUIRE(holds(0));
}

TEST_CASE("a kernel that can write an empty gradient in fp32 finds it as it is", "[kernels]") {
  Parameter weight = sevens(at::kFloat);
  weight.gradient_state = GradientState::empty;
  const GradientSink sink(weight, weight.value);
  REQUIRE(sink.fp32(/*can_write=*/true).write());
  REQUIRE(weight.gradient.eq(7).all().item<bool>());
  REQUIRE_FALSE(sink.fp32(/*can_write=*/true).write());
}

TEST_CASE("a frozen parameter takes no gradient", "[kernels]") {
  Parameter weight = sevens(at::kFloat);
  weight.trainable = false;
  weight.gradient.reset();
  const GradientSink sink(weight, weight.value);
  sink.product(weight.value.t(), weight.value);
  sink.rows(weight.value);
  sink.parts(weight.value);
  sink.add(weight.value);
  REQUIRE_FALSE(sink.any_format().defined());
  REQUIRE(sink.fp32().data() == nullptr);
  REQUIRE(sink.vector() == nullptr);
  REQUIRE(weight.gradient_state == GradientState::held);
}

TEST_CASE("a gradient that is unbound, of another size or narrow for a vector is refused",
          "[kernels]") {
  Parameter weight = sevens(at::kFloat);
  const GradientSink sink(weight, weight.value);
  weight.gradient = at::full({4, 4}, 7, at::kFloat);
  REQUIRE_THROWS_AS(sink.open(), Error);
  weight.gradient.reset();
  REQUIRE_THROWS_AS(sink.open(), Error);
  Parameter bias = test::Random(2).parameter({8}, at::kBFloat16);
  bias.gradient = at::full({8}, 7, at::kBFloat16);
  REQUIRE_THROWS_AS(GradientSink(bias, bias.value).vector(), Error);
}

}  // namespace
}  // namespace dstrain
