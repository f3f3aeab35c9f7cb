#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/activation/ops_drop_path.h"
#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/excite/ops_excite.h"
#include "test/kernels/bounds.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

// Squeeze and excitation, stochastic depth.

namespace dstrain {
namespace {

using test::Bounded;
using test::exact;
using test::far;
using test::leaf;
using Tensors = std::vector<at::Tensor>;

/// The parameters of two maps, and the call with them.
struct Maps {
  Maps(test::Random& random, std::int64_t channels, std::int64_t squeezed, at::ScalarType type)
      : reduce(random.parameter({squeezed, channels, 1, 1}, type)),
        reduce_bias(random.parameter({squeezed}, type)),
        expand(random.parameter({channels, squeezed, 1, 1}, type)),
        expand_bias(random.parameter({channels}, type)) {}

  [[nodiscard]] ops::ExciteCall call(ops::ImageActivation activation, ops::Gate gate) {
    return {.reduce = reduce,
            .reduce_bias = reduce_bias,
            .expand = expand,
            .expand_bias = expand_bias,
            .activation = activation,
            .gate = gate};
  }
  [[nodiscard]] std::vector<Parameter*> all() {
    return {&reduce, &reduce_bias, &expand, &expand_bias};
  }

  Parameter reduce, reduce_bias, expand, expand_bias;
};

/// The same in double, by ATen, with leaves in the order of Maps::all().
struct PlainMaps {
  explicit PlainMaps(Maps& maps) {
    for (const Parameter* parameter : maps.all()) leaves.push_back(exact(parameter->value));
  }
  [[nodiscard]] at::Tensor gate(const at::Tensor& mean, ops::ImageActivation activation,
                                ops::Gate gate) const {
    const at::Tensor hidden = at::linear(mean, leaves[0].flatten(1), leaves[1]);
    const at::Tensor z =
        at::linear(activation == ops::ImageActivation::silu ? at::silu(hidden) : at::relu(hidden),
                   leaves[2].flatten(1), leaves[3]);
    // The gradient of at::hardsigmoid has 1/6 of fp32.
    return gate == ops::Gate::sigmoid ? at::sigmoid(z) : (z + 3).clamp(0, 6) / 6;
  }
  Tensors leaves;
};

/// The gates and the gradients of the means and of Maps::all(), everything between in fp32.
std::vector<Bounded> gate_bounds(Maps& maps, const at::Tensor& mean, const at::Tensor& dgate,
                                 const ops::ExciteCall& call) {
  const Bounded reduce(maps.reduce.value.flatten(1)), expand(maps.expand.value.flatten(1));
  const Bounded hidden = test::times(mean, reduce, at::kFloat) + maps.reduce_bias.value;
  const bool smooth = call.activation == ops::ImageActivation::silu;
  const Bounded active =
      smooth ? test::silu(hidden) : Bounded(hidden.value.clamp_min(0), hidden.error);
  const Bounded z = test::times(active, expand, at::kFloat) + maps.expand_bias.value;
  const bool hard = call.gate == ops::Gate::hard_sigmoid;
  const at::Tensor open = hard ? at::hardsigmoid(z.value) : at::sigmoid(z.value);
  const Bounded gate =
      applied(z, open, at::full_like(open, hard ? 1.0 / 6 : 0.25),
              hard ? (z.reach() + 3) * 0x1p-23 : open * (test::kExpError + 4 * 0x1p-24));
  const Bounded inside(open.gt(0).logical_and(open.lt(1)));
  const Bounded dz =
      hard ? dgate * inside * (1.0 / 6) : dgate * (gate * (Bounded(at::ones_like(open)) - gate));
  const Bounded dhidden = test::input_gradient(dz, expand, at::kFloat) *
                          (smooth ? test::silu_slope(hidden) : Bounded(hidden.value.gt(0)));
  return {gate,
          test::input_gradient(dhidden, reduce, at::kFloat),
          test::weight_gradient(dhidden, mean),
          test::row_sum(dhidden),
          test::weight_gradient(dz, active),
          test::row_sum(dz)};
}

TEST_CASE("gates of squeeze and excitation and their gradients equal ATen's", "[kernels]") {
  using ops::ImageActivation;
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto [activation, gate] =
      GENERATE(std::pair(ImageActivation::silu, ops::Gate::sigmoid),
               std::pair(ImageActivation::relu, ops::Gate::hard_sigmoid));
  const auto [samples, channels, squeezed] =
      GENERATE(std::tuple{5, 18, 7}, std::tuple{1, 8, 1}, std::tuple{3, 96, 4},
               std::tuple{130, 33, 6}, std::tuple{5, 1152, 48}, std::tuple{2, 960, 240},
               std::tuple{4, 72, 24}, std::tuple{2, 40, 1000});
  CAPTURE(device.str(), c10::toString(dtype), static_cast<int>(activation), samples, channels,
          squeezed);
  test::Random random(1, device);
  Maps maps(random, channels, squeezed, dtype);
  for (Parameter* weight : {&maps.reduce, &maps.expand})
    weight->value.mul_(1 / std::sqrt(static_cast<double>(channels)));
  for (Parameter* parameter : maps.all()) {
    parameter->gradient = random(parameter->shape);
    parameter->gradient_state = GradientState::added;
  }
  if (samples == 3) maps.reduce.gradient_state = GradientState::empty;
  if (samples < 4) maps.expand.gradient_state = GradientState::empty;
  const at::Tensor mean = random({samples, channels}, dtype), dgate = random({samples, channels});
  const auto run = [&, act = activation, rule = gate] {
    Maps own = maps;
    for (Parameter* parameter : own.all()) parameter->gradient = parameter->gradient.clone();
    const ops::ExciteCall call = own.call(act, rule);
    const ops::Gates gates = ops::gates_of(mean, call);
    Tensors all = {gates.gate, ops::gates_gradient(dgate.clone(), mean, gates, call)};
    for (const Parameter* parameter : own.all()) all.push_back(parameter->gradient);
    return all;
  };
  const PlainMaps plain(maps);
  const at::Tensor mean64 = exact(mean), open64 = plain.gate(mean64, activation, gate);
  open64.backward(exact(dgate).detach());
  Tensors expected = {open64, mean64.grad()};
  std::vector<Bounded> bounds = gate_bounds(maps, mean, dgate, maps.call(activation, gate));
  for (std::size_t i = 0; i < 4; ++i) {
    const Parameter& parameter = *maps.all()[i];
    const bool adds = parameter.gradient_state == GradientState::added;
    const at::Tensor before = adds ? parameter.gradient : at::zeros_like(parameter.gradient);
    expected.push_back(plain.leaves[i].grad() + exact(before));
    bounds[2 + i] =
        viewed(bounds[2 + i], [&](const at::Tensor& t) { return t.view(parameter.shape); }) +
        before;
  }
  const Tensors found = run(), again = run();
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(found[i], expected[i], bounds[i]) == "");
    REQUIRE(found[i].equal(again[i]));
  }
}

/// What stands around the gates: a norm, a depthwise convolution, a norm; then a product.
struct ExciteBlock {
  static constexpr std::int64_t kIn = 6, kOut = 4;

  explicit ExciteBlock(at::ScalarType type) : random(2), maps(random, kIn, 3, type) {
    for (const std::int64_t channels : {kIn, kIn, kIn, kIn})
      vectors.push_back(random.parameter({channels}, type));
    depthwise = random.parameter({kIn, 1, 3, 3}, type);
    project = random.parameter({kOut, kIn, 1, 1}, type);
  }
  [[nodiscard]] ops::BatchNormCall norm(std::size_t first, const at::Tensor& valid) {
    return {.weight = vectors[first],
            .bias = vectors[first + 1],
            .eps = 1e-3,
            .running_mean = at::zeros({kIn}),
            .running_variance = at::ones({kIn}),
            .valid = valid,
            .activation = ops::ImageActivation::silu};
  }
  [[nodiscard]] std::vector<Parameter*> all() {
    std::vector<Parameter*> list = maps.all();
    for (Parameter& vector : vectors) list.push_back(&vector);
    list.insert(list.end(), {&depthwise, &project});
    return list;
  }

  test::Random random;
  Maps maps;
  std::vector<Parameter> vectors;  ///< weight and bias of both norms
  Parameter depthwise, project;
};

TEST_CASE("excited_depthwise equals its pieces and their gradients", "[kernels][cpu]") {
  const bool normed = GENERATE(false, true), fillers = GENERATE(false, true);
  CAPTURE(normed, fillers);
  constexpr std::int64_t kSamples = 4, kIn = ExciteBlock::kIn, kOut = ExciteBlock::kOut;
  ExciteBlock block(at::kFloat);
  const std::int64_t counted = kSamples - (fillers ? 1 : 0);
  const at::Tensor x = leaf(block.random({kSamples, 7, 6, kIn}));
  const at::Tensor valid = fillers ? at::full({}, counted, at::kInt) : at::Tensor();
  at::Tensor dy = block.random({kSamples, 7, 6, kOut});
  dy.narrow(0, counted, kSamples - counted).zero_();
  const ops::BatchNormCall before = block.norm(0, valid), after = block.norm(2, valid);
  const ops::ConvShape shape = {
      .in = kIn, .out = kIn, .kernel = 3, .before = 1, .after = 1, .groups = kIn};
  const at::Tensor y = ops::excited_depthwise(
      x, {.before = normed ? &before : nullptr,
          .depthwise = shape,
          .depthwise_weight = block.depthwise,
          .after = after,
          .excite = block.maps.call(ops::ImageActivation::silu, ops::Gate::sigmoid),
          .project = {.in = kIn, .out = kOut},
          .project_weight = block.project});
  y.backward(dy);

  // In double, [B, C, H, W], of the samples that count.
  const at::Tensor x64 = exact(x);
  const PlainMaps maps(block.maps);
  Tensors leaves;
  for (const Parameter* parameter : block.all()) leaves.push_back(exact(parameter->value));
  std::copy(maps.leaves.begin(), maps.leaves.end(), leaves.begin());
  const auto norm = [&](const at::Tensor& image, std::size_t first) {
    return at::silu(std::get<0>(at::native_batch_norm(image, leaves[4 + first], leaves[5 + first],
                                                      {}, {}, /*training=*/true, 0, 1e-3)));
  };
  at::Tensor h = x64.narrow(0, 0, counted).permute({0, 3, 1, 2});
  if (normed) h = norm(h, 0);
  h = norm(at::conv2d(h, leaves[8], {}, 1, 1, 1, kIn), 2);
  const at::Tensor gate = maps.gate(h.mean({2, 3}), ops::ImageActivation::silu, ops::Gate::sigmoid);
  const at::Tensor y64 =
      at::conv2d(h * gate.view({counted, kIn, 1, 1}), leaves[9]).permute({0, 2, 3, 1});
  y64.backward(dy.narrow(0, 0, counted).to(at::kDouble));

  // Norms make errors of an image's sums larger.
  constexpr std::int64_t kLength = 64 * kSamples * 7 * 6;
  REQUIRE(far(y.narrow(0, 0, counted), y64, at::kFloat, kLength) == "");
  REQUIRE(far(x.grad(), x64.grad(), at::kFloat, kLength) == "");
  const std::vector<Parameter*> parameters = block.all();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(i);
    if (!leaves[i].grad().defined()) continue;  // of a norm that is not there
    REQUIRE(far(parameters[i]->gradient, leaves[i].grad(), at::kFloat, kLength) == "");
  }
}

TEST_CASE("excited_depthwise reaches its weights although its input needs no gradient",
          "[kernels][cpu]") {
  ExciteBlock block(at::kFloat);
  const ops::BatchNormCall after = block.norm(2, {});
  const auto run = [&](std::int64_t out) {
    return ops::excited_depthwise(
        block.random({2, 4, 4, ExciteBlock::kIn}),
        {.depthwise = {.in = ExciteBlock::kIn,
                       .out = out,
                       .kernel = 3,
                       .before = 1,
                       .after = 1,
                       .groups = ExciteBlock::kIn},
         .depthwise_weight = block.depthwise,
         .after = after,
         .excite = block.maps.call(ops::ImageActivation::silu, ops::Gate::sigmoid),
         .project = {.in = ExciteBlock::kIn, .out = ExciteBlock::kOut},
         .project_weight = block.project});
  };
  run(ExciteBlock::kIn).sum().backward();
  for (const Parameter* parameter : {&block.depthwise, &block.project, &block.maps.expand})
    REQUIRE(parameter->gradient.abs().sum().item<float>() > 0);
  REQUIRE_THROWS_AS(run(ExciteBlock::kIn + 1), Error);
}

TEST_CASE("a norm beside a residual leaves out samples as drop_path does", "[kernels][cpu]") {
  test::Random random(4);
  const at::Tensor seed = at::scalar_tensor(5, at::kLong), x = leaf(random({6, 3, 3, 4})),
                   residual = leaf(random({6, 3, 3, 4})), dy = random({6, 3, 3, 4});
  Parameter weight = random.parameter({4}, at::kFloat), bias = random.parameter({4}, at::kFloat);
  ops::BatchNormCall call{.weight = weight,
                          .bias = bias,
                          .running_mean = at::zeros({4}),
                          .running_variance = at::ones({4})};
  const ops::DropMask mask{.share = 0.5, .seed = seed, .place = 3};
  const auto grads = [&](const at::Tensor& y) {
    for (const at::Tensor& t : {x, residual}) t.mutable_grad().reset();
    for (Parameter* parameter : {&weight, &bias}) parameter->gradient.zero_();
    y.backward(dy);
    return Tensors{y.detach(), x.grad(), residual.grad(), weight.gradient.clone(),
                   bias.gradient.clone()};
  };
  const Tensors apart = grads(ops::drop_path(ops::batch_norm(x, call), 6, mask, residual));
  call.drop = mask;
  const Tensors together = grads(ops::batch_norm(x, call, residual));
  for (std::size_t i = 0; i < apart.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(together[i], apart[i], at::kFloat, 64) == "");
  }
  REQUIRE_THROWS_AS(ops::batch_norm(x, call), Error);
}

TEST_CASE("drop_path leaves out whole samples by the seed", "[kernels][cpu]") {
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
  x.mutable_grad().reset();  // without another image there is one gradient
  tokens.backward(dy.view({kSamples * 2, 12}));
  CHECK(far(x.grad(), rounded(scaled(dy), dtype)) == "");
}

}  // namespace
}  // namespace dstrain
