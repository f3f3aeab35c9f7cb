#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <limits>

#include "engine/nn/attention.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/mlp.h"
#include "engine/nn/parameter_order.h"
#include "engine/nn/rms_norm.h"
#include "engine/nn/token_embedding.h"
#include "test/kernels/attention_bounds.h"
#include "test/kernels/bounds.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Bounded;
using test::far;

/// Random values for the parameters of a module.
template <class Module>
std::vector<Parameter*> bound(Module& module) {
  std::vector<Parameter*> list;
  module.add_parameters(list);
  for (Parameter* parameter : list) parameter->value = at::randn(parameter->shape);
  return list;
}

/// x weight^T.
Bounded times(const Bounded& x, const Parameter& weight) {
  return test::times(x, weight.value, at::kFloat);
}

/// x weight^T + bias.
Bounded affine(const Bounded& x, const Parameter& weight, const Parameter& bias) {
  return times(x, weight) + bias.value;
}

/// The attention of whole sequences [tokens, qkv_width], with what rounding may do to it.
Bounded attended(const Bounded& qkv, const ops::AttentionShape& shape) {
  const at::Tensor none = at::zeros({qkv.value.size(0), shape.width()}, at::kDouble);
  return test::sequence_bounds(qkv, none, shape,
                               shape.alibi ? test::Biases::to_scores : test::Biases::none,
                               at::kFloat)
      .out;
}

/// Softmax attention of one head, with `bias` [T, T] added to the scaled scores.
at::Tensor one_head(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& bias) {
  const at::Tensor scores = at::matmul(q, k.t()) / std::sqrt(static_cast<double>(q.size(1))) + bias;
  return at::matmul(at::softmax(scores, 1), v);
}

/// 0 where a token may look, else minus infinity.
at::Tensor causal_bias(std::int64_t tokens) {
  return at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), at::kDouble).triu(1);
}

/// Rotary positions on rows of one head: the pair (i, i + d/2) turned by position * theta^(-2i/d).
at::Tensor rotated(const at::Tensor& x, double theta) {
  const std::int64_t half = x.size(1) / 2;
  const at::Tensor rate =
      at::pow(theta, at::arange(half, x.options()) * (-1.0 / static_cast<double>(half)));
  const at::Tensor angle = at::outer(at::arange(x.size(0), x.options()), rate);
  const at::Tensor a = x.narrow(1, 0, half), b = x.narrow(1, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 1);
}

TEST_CASE("stacked matrices keep their names and shapes", "[nn]") {
  Linear linear({{"q", 4}, {"k", 2}, {"v", 2}}, {6}, {Init::truncated_normal, 0.5});
  std::vector<Parameter*> list;
  linear.add_parameters(list);
  REQUIRE(list.size() == 2);
  CHECK(list[0] == &linear.weight());
  CHECK(list[0]->shape == std::vector<std::int64_t>{8, 6});
  CHECK(list[0]->parts[1].name == "k.weight");
  CHECK(list[0]->parts[1].shape == std::vector<std::int64_t>{2, 6});
  CHECK(list[0]->init == Init::truncated_normal);
  CHECK(list[0]->init_std == 0.5);
  CHECK(list[1] == linear.bias());
  CHECK(list[1]->shape == std::vector<std::int64_t>{8});
  CHECK(list[1]->parts[2].name == "v.bias");
  CHECK(list[1]->init == Init::zeros);
  CHECK(linear.flops(5) == 2 * 5 * 8 * 6);
}

TEST_CASE("a linear map without bias has none", "[nn]") {
  Linear linear({{"o", 3}}, {4}, {}, /*has_bias=*/false);
  const auto list = bound(linear);
  REQUIRE(list.size() == 1);
  CHECK(linear.bias() == nullptr);
  const at::Tensor x = at::randn({5, 4});
  CHECK(far(linear.forward(x), times(x, *list[0])) == "");
  CHECK_THROWS_WITH(linear.forward_gelu(x, ops::Gelu::erf), Catch::Contains("GELU without a bias"));
}

TEST_CASE("matrices stand before vectors, each kind in its order", "[nn]") {
  Parameter a, b, c, d;
  a.shape = {4}, b.shape = {2, 3}, c.shape = {1}, d.shape = {5, 1, 1};
  CHECK(matrices_first({&a, &b, &c, &d}) == std::vector<Parameter*>{&b, &d, &a, &c});
}

at::Tensor attend(SelfAttention& attention, const at::Tensor& x, std::int64_t samples) {
  const Batch batch;
  LayerPass pass{.batch = &batch};
  return attention.run(pass, {.tensor = x}, samples).tensor;
}

Flops flops_of(SelfAttention& attention, const at::Tensor& x, std::int64_t samples) {
  LayerCosts costs("attention", 4, Works::on_tokens);
  LayerPass pass{.costs = &costs};
  (void)attention.run(pass, {.size = {x.sizes().vec(), 4}}, samples);
  return total(costs.layers()).forward_flops;
}

TEST_CASE("self-attention is that of each head by itself", "[nn]") {
  constexpr std::int64_t kBatch = 2, kTokens = 5, kWidth = 12, kHeads = 3, kHeadDim = 4;
  SelfAttention attention({.qkv = {"q", "k", "v"}, .output = "o"}, kWidth,
                          {.heads = kHeads, .kv_heads = kHeads, .head_dim = kHeadDim}, {});
  const ops::AttentionShape shape{.heads = kHeads, .kv_heads = kHeads, .head_dim = kHeadDim};
  const auto list = bound(attention);
  const at::Tensor x = at::randn({kBatch * kTokens, kWidth});
  const Bounded bounded_qkv = affine(x, *list[0], *list[1]);
  const at::Tensor qkv = bounded_qkv.value;
  const at::Tensor none = at::zeros({kTokens, kTokens}, at::kDouble);
  std::vector<at::Tensor> samples;
  for (std::int64_t sample = 0; sample < kBatch; ++sample) {
    const at::Tensor rows = qkv.narrow(0, sample * kTokens, kTokens);
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const auto part = [&](std::int64_t which) {
        return rows.narrow(1, which * kWidth + head * kHeadDim, kHeadDim);
      };
      heads.push_back(one_head(part(0), part(1), part(2), none));
    }
    samples.push_back(at::cat(heads, 1));
  }
  const auto sample = [&](std::int64_t i) {
    return attended(narrowed(bounded_qkv, 0, i * kTokens, kTokens), shape);
  };
  const Bounded both = joined(sample(0), sample(1), 0);
  CHECK(far(attend(attention, x, kBatch), affine(at::cat(samples), *list[2], *list[3]).value,
            affine(both, *list[2], *list[3])) == "");
  CHECK(flops_of(attention, x, kBatch) ==
        2 * 10 * 12 * 36 + 4 * kBatch * kTokens * kTokens * kWidth + 2 * 10 * 12 * 12);
}

TEST_CASE("grouped queries share keys and values, turned by their positions", "[nn]") {
  constexpr std::int64_t kTokens = 7, kWidth = 10, kHeads = 4, kKvHeads = 2, kHeadDim = 6;
  constexpr double kTheta = 100;
  const ops::AttentionShape shape{.heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = kHeadDim,
                                  .causal = true,
                                  .rope_theta = kTheta};
  SelfAttention attention({.qkv = {"q", "k", "v"}, .output = "o"}, kWidth, shape, {},
                          {.qkv = true, .output = false});
  const auto list = bound(attention);
  REQUIRE(list.size() == 3);
  CHECK(list[0]->shape == std::vector<std::int64_t>{8 * kHeadDim, kWidth});
  CHECK(list[0]->parts[2].shape == std::vector<std::int64_t>{kKvHeads * kHeadDim, kWidth});
  CHECK(list[2]->shape == std::vector<std::int64_t>{kWidth, kHeads * kHeadDim});
  const at::Tensor x = at::randn({kTokens, kWidth});
  const Bounded bounded_qkv = affine(x, *list[0], *list[1]);
  const at::Tensor qkv = bounded_qkv.value;
  const auto head_at = [&](std::int64_t place) {
    return qkv.narrow(1, place * kHeadDim, kHeadDim);
  };
  std::vector<at::Tensor> heads;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const std::int64_t shared = head / (kHeads / kKvHeads);
    heads.push_back(one_head(rotated(head_at(head), kTheta),
                             rotated(head_at(kHeads + shared), kTheta),
                             head_at(kHeads + kKvHeads + shared), causal_bias(kTokens)));
  }
  CHECK(far(attend(attention, x, 1), times(at::cat(heads, 1), *list[2]).value,
            times(attended(bounded_qkv, shape), *list[2])) == "");
  CHECK(flops_of(attention, x, 1) == 2 * 7 * 10 * 48 + 2 * 7 * 7 * 24 + 2 * 7 * 24 * 10);
}

TEST_CASE("heads of one matrix attend with linear biases", "[nn]") {
  constexpr std::int64_t kTokens = 6, kWidth = 12, kHeads = 3, kHeadDim = 4;
  const ops::AttentionShape shape{.heads = kHeads,
                                  .kv_heads = kHeads,
                                  .head_dim = kHeadDim,
                                  .interleaved = true,
                                  .causal = true,
                                  .alibi = true};
  SelfAttention attention({.qkv = {"qkv"}, .output = "o"}, kWidth, shape, {});
  const auto list = bound(attention);
  REQUIRE(list[0]->parts.size() == 1);
  const at::Tensor x = at::randn({kTokens, kWidth});
  const Bounded bounded_qkv = affine(x, *list[0], *list[1]);
  const at::Tensor qkv = bounded_qkv.value;
  // Two heads have the slopes of a power of two, the third one from between them.
  const std::array<double, 3> slopes = {1.0 / 16, 1.0 / 256, 1.0 / 4};
  const at::Tensor place = at::arange(kTokens, at::kDouble);
  std::vector<at::Tensor> heads;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const auto part = [&](std::int64_t which) {
      return qkv.narrow(1, (3 * head + which) * kHeadDim, kHeadDim);
    };
    const at::Tensor distance = place.unsqueeze(0) - place.unsqueeze(1);
    heads.push_back(
        one_head(part(0), part(1), part(2),
                 causal_bias(kTokens) + distance * slopes[static_cast<std::size_t>(head)]));
  }
  CHECK(far(attend(attention, x, 1), affine(at::cat(heads, 1), *list[2], *list[3]).value,
            affine(attended(bounded_qkv, shape), *list[2], *list[3])) == "");
}

TEST_CASE("the MLP is linear, GELU, linear", "[nn]") {
  const bool exact = GENERATE(true, false);
  Mlp mlp({.up = "up", .down = "down"}, 6, 10, exact ? ops::Gelu::erf : ops::Gelu::tanh, {});
  const auto list = bound(mlp);
  const at::Tensor x = at::randn({7, 6});
  const Bounded bounded_z = affine(x, *list[0], *list[1]);
  const at::Tensor z = bounded_z.value;
  const at::Tensor half =
      exact ? (z / std::sqrt(2.0)).erf()
            : (std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z)).tanh();
  const Bounded h = test::gelu(bounded_z, exact ? ops::Gelu::erf : ops::Gelu::tanh);
  CHECK(far(mlp.forward(x), affine(z * 0.5 * (half + 1), *list[2], *list[3]).value,
            affine(h, *list[2], *list[3])) == "");
  CHECK(total(mlp.layers(7, 4)).forward_flops == 2 * 7 * 6 * 10 * 2);
}

TEST_CASE("the gated MLP multiplies silu of the gate with up", "[nn]") {
  GatedMlp mlp({.gate = "gate", .up = "up", .down = "down"}, 6, 10, {});
  const auto list = bound(mlp);
  REQUIRE(list.size() == 2);
  CHECK(list[0]->parts[1].name == "up.weight");
  const at::Tensor x = at::randn({7, 6});
  const Bounded z = times(x, *list[0]), gate = narrowed(z, 1, 0, 10), up = narrowed(z, 1, 10, 10);
  const at::Tensor h = gate.value * gate.value.sigmoid() * up.value;
  CHECK(far(mlp.forward(x), times(h, *list[1]).value, times(test::silu(gate) * up, *list[1])) ==
        "");
  CHECK(total(mlp.layers(7, 4)).forward_flops == 2 * 7 * 6 * 10 * 3);
}

TEST_CASE("layer norm returns the sum beside its norm", "[nn]") {
  LayerNorm norm("n", 8, 1e-6);
  const auto list = bound(norm);
  const at::Tensor x = at::randn({3, 8}), delta = at::randn({3, 8});
  const auto [sum, y] = norm.forward(x, delta);
  CHECK(sum.equal(x + delta));
  const at::Tensor wide = sum.to(at::kDouble), centred = wide - wide.mean(1, true);
  const at::Tensor unit = centred / (centred.pow(2).mean(1, true) + 1e-6).sqrt();
  const Bounded bound =
      test::layer_norm(sum, list[0]->value, list[1]->value, 1e-6, at::zeros_like(sum), at::kFloat)
          .y;
  CHECK(far(y, unit * list[0]->value + list[1]->value, bound) == "");
  CHECK(norm.forward(x, std::nullopt).first.equal(x));
}

TEST_CASE("root-mean-square norm returns the sum beside its norm", "[nn]") {
  RmsNorm norm("n", 8, 1e-3);
  const auto list = bound(norm);
  REQUIRE(list.size() == 1);
  const at::Tensor x = at::randn({3, 8}), delta = at::randn({3, 8});
  const auto [sum, y] = norm.forward(x, delta);
  CHECK(sum.equal(x + delta));
  const at::Tensor wide = sum.to(at::kDouble);
  const Bounded bound =
      test::rms_norm(sum, list[0]->value, 1e-3, at::zeros_like(sum), at::kFloat).y;
  CHECK(far(y, wide / (wide.pow(2).mean(1, true) + 1e-3).sqrt() * list[0]->value, bound) == "");
  CHECK(norm.forward(x, std::nullopt).first.equal(x));
}

TEST_CASE("the embedding takes a row for each token", "[nn]") {
  TokenEmbedding embedding("words", 9, 4, {Init::normal, 0.02});
  const auto list = bound(embedding);
  REQUIRE(list.size() == 1);
  CHECK(list[0] == &embedding.table());
  CHECK(list[0]->parts.at(0).name == "words.weight");
  CHECK(list[0]->init == Init::normal);
  const at::Tensor tokens = at::tensor({8, 0, 3, 3, 1, 0}, at::kLong).view({2, 3});
  CHECK(embedding.forward(tokens).equal(list[0]->value.index_select(0, tokens.flatten())));
}

}  // namespace
}  // namespace dstrain
