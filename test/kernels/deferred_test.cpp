#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/kernels/ops.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Gradients of matrices that are computed after those of the inputs.
namespace dstrain {
namespace {

struct DeferredWeights {
  Parameter main, bias, low, high, input_bias;
};

struct DeferredForm {
  std::string name;
  bool fp8 = false;
  std::size_t deferred = 1;  ///< products that can come later
  std::function<at::Tensor(const at::Tensor& x, DeferredWeights& w)> run;
};

std::vector<DeferredForm> deferred_forms() {
  return {
      {.name = "linear",
       .run = [](const at::Tensor& x,
                 DeferredWeights& w) { return ops::linear(x, w.main, nullptr); }},
      {.name = "linear with a bias",
       .run = [](const at::Tensor& x,
                 DeferredWeights& w) { return ops::linear(x, w.main, &w.bias); }},
      {.name = "linear in FP8",
       .fp8 = true,
       .run = [](const at::Tensor& x,
                 DeferredWeights& w) { return ops::linear(x, w.main, &w.bias); }},
      {.name = "linear_gelu",
       .run =
           [](const at::Tensor& x, DeferredWeights& w) {
             return ops::linear_gelu(x, w.main, w.bias, ops::Gelu::erf);
           }},
      {.name = "gelu_linear",
       .run =
           [](const at::Tensor& x, DeferredWeights& w) {
             return ops::gelu_linear(x, w.input_bias, w.main, &w.bias, ops::Gelu::erf);
           }},
      {.name = "gelu_linear in FP8",
       .fp8 = true,
       .run =
           [](const at::Tensor& x, DeferredWeights& w) {
             return ops::gelu_linear(x, w.input_bias, w.main, nullptr, ops::Gelu::tanh);
           }},
      {.name = "swiglu_linear",
       .run =
           [](const at::Tensor& x, DeferredWeights& w) {
             return ops::swiglu_linear(at::cat({x, x + 1}, 1), w.main);
           }},
      {.name = "swiglu_linear in FP8",
       .fp8 = true,
       .run =
           [](const at::Tensor& x, DeferredWeights& w) {
             return ops::swiglu_linear(at::cat({x, x + 1}, 1), w.main);
           }},
      {.name = "a low-rank term",
       .run =
           [](const at::Tensor& x, DeferredWeights& w) {
             return ops::adapted_linear(x, w.main, &w.bias,
                                        {{.a = &w.low, .b = &w.high, .scale = 0.5}});
           }},
  };
}

/// Gradients after two micro-batches: the input's of the second, then those of the weights.
std::vector<at::Tensor> gradients(const DeferredForm& form, at::ScalarType dtype, bool later) {
  test::Random random(7);
  DeferredWeights w{.main = random.parameter({48, 32}, dtype),
                    .bias = random.parameter({48}, dtype),
                    .low = random.parameter({4, 32}, dtype),
                    .high = random.parameter({48, 4}, dtype),
                    .input_bias = random.parameter({32}, dtype)};
  w.main.fp8 = form.fp8;
  w.main.gradient.fill_(7);
  w.main.gradient_state = GradientState::empty;
  DeferredWork work;
  std::vector<at::Tensor> inputs;
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    inputs.push_back(test::leaf(random({16, 32}, dtype)));
    const at::Tensor dy = random({16, 48}, dtype);
    if (later) w.main.later = &work;
    form.run(inputs.back(), w).backward(dy);
    w.main.later = nullptr;
  }
  if (later) {
    REQUIRE(work.size() == 2 * form.deferred);
    REQUIRE(w.main.gradient_state == GradientState::empty);
  }
  w.main.value.reset();  // what comes later reads no weight
  for (const auto& products : work) products();
  return {inputs[1].grad(), w.main.gradient, w.bias.gradient, w.low.gradient, w.high.gradient};
}

TEST_CASE("products for matrices that come later give the same bits", "[kernels]") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const DeferredForm& form : deferred_forms()) {
      CAPTURE(form.name, toString(dtype));
      const auto at_once = gradients(form, dtype, false), after = gradients(form, dtype, true);
      for (std::size_t i = 0; i < at_once.size(); ++i) {
        CAPTURE(i);
        CHECK(at_once[i].equal(after[i]));
      }
    }
  }
}

TEST_CASE("a frozen weight puts nothing off", "[kernels]") {
  test::Random random(8);
  Parameter weight = random.parameter({48, 32}, at::kFloat),
            bias = random.parameter({48}, at::kFloat);
  weight.trainable = false;
  DeferredWork work;
  weight.later = &work;
  const at::Tensor dy = random({16, 48});
  ops::linear(test::leaf(random({16, 32})), weight, &bias).backward(dy);
  CHECK(work.empty());
  CHECK(bias.gradient.allclose(dy.sum(0)));
}

}  // namespace
}  // namespace dstrain
