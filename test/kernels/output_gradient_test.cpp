#include "engine/kernels/linear/output_gradient.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <tuple>
#include <vector>

#include "engine/kernels/ops.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Gradients that carry what their product needs.
namespace dstrain {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST_CASE("what is needed of a gradient goes with the output, also detached", "[kernels]") {
  const at::Tensor y = at::full({2, 3}, 1, at::kFloat);
  REQUIRE(!ops::needs_of(y).column_sums);
  ops::set_needs(y, {.column_sums = true});
  REQUIRE(ops::needs_of(y).column_sums);
  REQUIRE(!ops::needs_of(y).maxima);
  REQUIRE(ops::needs_of(y.detach()).column_sums);
  REQUIRE(!ops::needs_of(y * 1).column_sums);
  REQUIRE(!ops::needs_of(y.clone()).column_sums);
  REQUIRE(!ops::needs_of(y.view({6})).column_sums);
  const at::Tensor copy = y.clone();
  ops::copy_needs(y, copy);
  REQUIRE(ops::needs_of(copy).column_sums);
}

TEST_CASE("what was found in a gradient holds until it is written", "[kernels]") {
  const at::Tensor dy = at::full({2, 3}, 1, at::kFloat), sums = dy.sum(0, true);
  ops::set_findings(dy, {.column_sums = sums});
  REQUIRE(ops::findings_of(dy).column_sums.is_same(sums));
  REQUIRE(!ops::findings_of(dy).maxima.defined());
  REQUIRE(!ops::findings_of(dy + dy).column_sums.defined());
  REQUIRE(!ops::findings_of(dy.clone()).column_sums.defined());
  REQUIRE(!ops::findings_of(dy.narrow(0, 0, 1)).column_sums.defined());
  dy.add_(1);
  REQUIRE(!ops::findings_of(dy).column_sums.defined());
}

struct Layers {
  Parameter weight, bias, norm_weight, norm_bias;
};

enum class Branch { linear, gelu };

at::Tensor branch_of(Branch kind, const at::Tensor& x, Layers& layers) {
  if (kind == Branch::linear) return ops::linear(x, layers.weight, &layers.bias);
  return ops::gelu_linear(x, layers.norm_bias, layers.weight, &layers.bias, ops::Gelu::erf);
}

struct Outcome {
  Tensors gradients;
  bool found = false;  ///< the branch's gradient carried its sums
};

/// A branch, and the norm behind it in a block of its own. Two micro-batches.
Outcome two_blocks(Branch kind, at::ScalarType type, bool carried) {
  test::Random random(11);
  Layers layers{.weight = random.parameter({24, 24}, type),
                .bias = random.parameter({24}, type),
                .norm_weight = random.parameter({24}, type),
                .norm_bias = random.parameter({24}, type)};
  Outcome outcome;
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const at::Tensor x = test::leaf(random({17, 24}, type)), stream = random({17, 24}, type);
    const Tensors seeds = {random({17, 24}, type), random({17, 24}, type)};
    const at::Tensor y = branch_of(kind, x, layers);
    const Tensors inputs = {stream.detach().requires_grad_(true),
                            (carried ? y : y * 1).detach().requires_grad_(true)};
    const auto [sum, z] =
        ops::add_layer_norm(inputs[0], inputs[1], layers.norm_weight, layers.norm_bias, 1e-5);
    const Tensors between = torch::autograd::grad({sum, z}, inputs, seeds);
    outcome.found = ops::findings_of(between[1]).column_sums.defined();
    torch::autograd::backward({y}, {between[1]});
    outcome.gradients.push_back(x.grad());
  }
  for (const Parameter* parameter :
       {&layers.weight, &layers.bias, &layers.norm_weight, &layers.norm_bias})
    outcome.gradients.push_back(parameter->gradient);
  return outcome;
}

TEST_CASE("a bias has the same gradient whether the norm behind it sums or not", "[kernels]") {
  for (const Branch kind : {Branch::linear, Branch::gelu}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      CAPTURE(static_cast<int>(kind), toString(type));
      const Outcome plain = two_blocks(kind, type, false), carried = two_blocks(kind, type, true);
      REQUIRE(!plain.found);
      REQUIRE(carried.found);
      for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
        CAPTURE(i);
        REQUIRE(carried.gradients[i].equal(plain.gradients[i]));
      }
    }
  }
}

TEST_CASE("a gradient that is added to another carries nothing", "[kernels]") {
  const auto bias_gradient = [&](bool twice) {
    test::Random same(13);
    Layers layers{.weight = same.parameter({24, 24}, at::kFloat),
                  .bias = same.parameter({24}, at::kFloat),
                  .norm_weight = same.parameter({24}, at::kFloat),
                  .norm_bias = same.parameter({24}, at::kFloat)};
    const at::Tensor x = test::leaf(same({17, 24})), stream = same({17, 24});
    const at::Tensor y = ops::linear(x, layers.weight, &layers.bias);
    const auto [sum, z] =
        ops::add_layer_norm(stream, y, layers.norm_weight, layers.norm_bias, 1e-5);
    const at::Tensor total = (sum * 3 + z * z).sum();
    (twice ? total + (y * y).sum() : total).backward();
    const at::Tensor alone = layers.bias.gradient;
    return std::tuple{alone, (2 * y.detach()).sum(0)};
  };
  const auto [once, of_square] = bias_gradient(false);
  const auto [both, unused] = bias_gradient(true);
  REQUIRE(both.allclose(once + of_square, 1e-4, 1e-4));
}

TEST_CASE("a frozen bias asks for nothing", "[kernels]") {
  test::Random random(14);
  Parameter weight = random.parameter({24, 24}, at::kFloat),
            bias = random.parameter({24}, at::kFloat);
  const at::Tensor x = test::leaf(random({17, 24}));
  REQUIRE(ops::needs_of(ops::linear(x, weight, &bias)).column_sums);
  bias.trainable = false;
  REQUIRE(!ops::needs_of(ops::linear(x, weight, &bias)).column_sums);
  REQUIRE(!ops::needs_of(ops::linear(x, weight, nullptr)).column_sums);
}

}  // namespace
}  // namespace dstrain
