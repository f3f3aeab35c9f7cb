#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>

#include <cmath>

#include "engine/nn/attention.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/mlp.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// Random values for the parameters of a module.
template <class Module>
std::vector<Parameter*> bound(Module& module) {
  std::vector<Parameter*> list;
  module.add_parameters(list);
  for (Parameter* parameter : list) parameter->value = at::randn(parameter->shape);
  return list;
}

/// x weight^T + bias in double.
at::Tensor affine(const at::Tensor& x, const Parameter& weight, const Parameter& bias) {
  return at::matmul(x.to(at::kDouble), weight.value.to(at::kDouble).t()) +
         bias.value.to(at::kDouble);
}

bool near(const at::Tensor& got, const at::Tensor& expected) {
  return (got.to(at::kDouble) - expected).abs().max().item<double>() <=
         1e-5 * expected.abs().max().item<double>();
}

TEST_CASE("stacked matrices keep their names and shapes", "[nn]") {
  Linear linear({"q", "k", "v"}, {4, 6}, 0.5);
  std::vector<Parameter*> list;
  linear.add_parameters(list);
  REQUIRE(list.size() == 2);
  CHECK(list[0]->shape == std::vector<std::int64_t>{12, 6});
  CHECK(list[0]->parts[1].name == "k.weight");
  CHECK(list[0]->parts[1].shape == std::vector<std::int64_t>{4, 6});
  CHECK(list[0]->init == Init::truncated_normal);
  CHECK(list[0]->init_std == 0.5);
  CHECK(list[1]->shape == std::vector<std::int64_t>{12});
  CHECK(list[1]->parts[2].name == "v.bias");
  CHECK(list[1]->init == Init::zeros);
  CHECK(linear.flops(5) == 2 * 5 * 12 * 6);
}

TEST_CASE("self-attention is that of each head by itself", "[nn]") {
  constexpr std::int64_t kBatch = 2, kTokens = 5, kWidth = 12, kHeads = 3, kHeadDim = 4;
  SelfAttention attention({.query = "q", .key = "k", .value = "v", .output = "o"}, kWidth, kHeads,
                          0.02);
  const auto list = bound(attention);
  const at::Tensor x = at::randn({kBatch * kTokens, kWidth});
  const at::Tensor qkv = affine(x, *list[0], *list[1]);
  std::vector<at::Tensor> samples;
  for (std::int64_t sample = 0; sample < kBatch; ++sample) {
    const at::Tensor rows = qkv.narrow(0, sample * kTokens, kTokens);
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const auto part = [&](std::int64_t which) {
        return rows.narrow(1, which * kWidth + head * kHeadDim, kHeadDim);
      };
      const at::Tensor scores = at::matmul(part(0), part(1).t()) / std::sqrt(double{kHeadDim});
      heads.push_back(at::matmul(at::softmax(scores, 1), part(2)));
    }
    samples.push_back(at::cat(heads, 1));
  }
  const at::Tensor expected = at::matmul(at::cat(samples), list[2]->value.to(at::kDouble).t()) +
                              list[3]->value.to(at::kDouble);
  CHECK(near(attention.forward(x, kBatch), expected));
  CHECK(attention.flops(kBatch, kTokens) ==
        2 * 10 * 12 * 36 + 4 * kBatch * kTokens * kTokens * kWidth + 2 * 10 * 12 * 12);
}

TEST_CASE("the MLP is linear, exact GELU, linear", "[nn]") {
  Mlp mlp("up", "down", 6, 10, 0.02);
  const auto list = bound(mlp);
  const at::Tensor x = at::randn({7, 6});
  const at::Tensor z = affine(x, *list[0], *list[1]);
  const at::Tensor hidden = z * 0.5 * ((z / std::sqrt(2.0)).erf() + 1);
  CHECK(near(mlp.forward(x), at::matmul(hidden, list[2]->value.to(at::kDouble).t()) +
                                 list[3]->value.to(at::kDouble)));
  CHECK(mlp.flops(7) == 2 * 7 * 6 * 10 * 2);
}

TEST_CASE("layer norm returns the sum beside its norm", "[nn]") {
  LayerNorm norm("n", 8, 1e-6);
  const auto list = bound(norm);
  const at::Tensor x = at::randn({3, 8}), delta = at::randn({3, 8});
  const auto [sum, y] = norm.forward(x, delta);
  CHECK(sum.equal(x + delta));
  const at::Tensor wide = sum.to(at::kDouble), centred = wide - wide.mean(1, true);
  const at::Tensor unit = centred / (centred.pow(2).mean(1, true) + 1e-6).sqrt();
  CHECK(near(y, unit * list[0]->value + list[1]->value));
  CHECK(norm.forward(x, std::nullopt).first.equal(x));
}

}  // namespace
}  // namespace dstrain
