#include <ATen/ops/addmm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "engine/base/error.h"
#include "engine/kernels/activation/ops_gated_linear.h"
#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/devices.h"
#include "test/kernels/swiglu.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

/// Operators with a weight: what each computes, its gradients, and what a frozen weight is spared.
namespace dstrain {
namespace {

using test::Bounded;
using test::exact;
using test::far;
using test::leaf;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void freeze(Parameter& parameter) {
  parameter.trainable = false;
  parameter.gradient = at::Tensor();
}

/// A buffer that holds nothing yet, as at the start of a step.
void empty_gradient(Parameter& parameter) {
  parameter.gradient.fill_(kNan);
  parameter.gradient_state = GradientState::empty;
}

TEST_CASE("linear maps and their gradients are the formula's, in FP8 that of rounded operands",
          "[kernels][fp8]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const bool fp8 = GENERATE(false, true), with_bias = GENERATE(false, true);
  const auto [rows, in, out] =
      GENERATE(std::tuple{6, 8, 5}, std::tuple{1, 24, 10}, std::tuple{32, 48, 16},
               std::tuple{37, 33, 17}, std::tuple{592, 256, 320}, std::tuple{1024, 1024, 768});
  if (!test::worth_it(device, rows * std::max(in, out))) return;
  if (fp8 && dtype == at::kFloat && device.is_cuda()) return;  // 16-bit types only
  CAPTURE(device.str(), c10::toString(dtype), fp8, with_bias, rows, in, out);
  test::Random random(2, device);
  const at::Tensor x = leaf(random({rows, in}, dtype)), dy = random({rows, out}, dtype);
  Parameter weight = random.parameter({out, in}, dtype), bias = random.parameter({out}, dtype);
  weight.fp8 = fp8;
  empty_gradient(weight);
  empty_gradient(bias);

  const bool in_codes = fp8 && rows % 16 == 0 && in % 16 == 0 && out % 16 == 0;
  const auto operand = [&](const at::Tensor& of, kernels::Fp8Format format) -> Bounded {
    if (!in_codes) return of;
    const auto q = ops::quantize(of.detach().cpu(), format, ops::Sides::rows);
    return at::Tensor(q.rows.to(at::kFloat) * q.scale);
  };
  const auto mapped = [&](const Bounded& left, const Bounded& right) {
    if (!with_bias) return test::times(left, right, dtype);
    return rounded(test::times(left, right, at::kFloat) + bias.value, dtype);
  };
  const Bounded x8 = operand(x, kernels::Fp8Format::e4m3),
                weight8 = operand(weight.value, kernels::Fp8Format::e4m3),
                dy8 = operand(dy, kernels::Fp8Format::e5m2);
  const Bounded y_bound = mapped(x8, weight8), dx = test::input_gradient(dy8, weight8, dtype),
                dweight = test::weight_gradient(dy8, x8), dbias = test::row_sum(dy);
  // A GPU's sums of codes are shorter than fp32.
  const auto off = [&](const at::Tensor& found, const Bounded& bound) {
    return in_codes && device.is_cuda()
               ? far(found, bound.value, dtype, 4 * std::max({rows, in, out}))
               : far(found, bound);
  };
  for (const bool again : {false, true}) {
    x.mutable_grad() = at::Tensor();
    const at::Tensor y = ops::linear(x, weight, with_bias ? &bias : nullptr);
    y.backward(dy);
    REQUIRE(off(y, y_bound) == "");
    REQUIRE(off(x.grad(), dx) == "");
    REQUIRE(off(weight.gradient, again ? dweight + dweight : dweight) == "");
    REQUIRE(weight.gradient_state == GradientState::added);
    if (in_codes) {  // near the product itself, but not it
      const double apart = test::relative_error(y, mapped(x, weight.value).value);
      REQUIRE((apart > 0.005 && apart < 0.06));
    }
    if (!with_bias) continue;
    REQUIRE(off(bias.gradient, again ? dbias + dbias : dbias) == "");
    REQUIRE(bias.gradient_state == GradientState::added);
  }
}

TEST_CASE("frozen weights and biases get no gradient, and the rest stays", "[kernels][fp8]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const bool weight_frozen = GENERATE(true, false), bias_frozen = GENERATE(true, false),
             fp8 = GENERATE(false, true);
  if (fp8 && dtype == at::kFloat && device.is_cuda()) return;  // 16-bit types only
  CAPTURE(device.str(), c10::toString(dtype), weight_frozen, bias_frozen, fp8);
  const auto run = [&](at::Device where, bool without_weight, bool without_bias) {
    test::Random random(3, where);
    const at::Tensor x = leaf(random({32, 48}, dtype));
    Parameter weight = random.parameter({64, 48}, dtype), bias = random.parameter({64}, dtype);
    weight.fp8 = fp8;
    if (without_weight) freeze(weight);
    if (without_bias) freeze(bias);
    const at::Tensor y = ops::linear(x, weight, &bias);
    ops::bias_gelu(y, bias, ops::Gelu::tanh).sum().backward();
    const at::Tensor fixed = x.detach();
    REQUIRE(ops::linear(fixed, weight, &bias).requires_grad() == !(without_weight && without_bias));
    REQUIRE(ops::linear_gelu(fixed, weight, bias, ops::Gelu::erf).requires_grad() ==
            !(without_weight && without_bias));
    return test::Tensors{y.detach(), x.grad(), weight.gradient, bias.gradient};
  };
  const auto found = run(device, weight_frozen, bias_frozen), all = run(at::kCPU, false, false);
  REQUIRE(found[2].defined() == !weight_frozen);
  REQUIRE(found[3].defined() == !bias_frozen);
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    if (!found[i].defined()) continue;
    if (device.is_cpu()) REQUIRE(found[i].equal(all[i]));
    REQUIRE(far(found[i], all[i], dtype, 1024) == "");
  }
}

TEST_CASE("linear_gelu in both forms equals that of ATen and its gradients", "[kernels][cpu]") {
  const auto kind = GENERATE(ops::Gelu::erf, ops::Gelu::tanh, ops::Gelu::quick);
  const bool frozen = GENERATE(false, true);
  CAPTURE(frozen);
  test::Random random(4);
  const at::Tensor x = leaf(random({21, 16})), dy = random({21, 40});
  Parameter weight = random.parameter({40, 16}, at::kFloat),
            bias = random.parameter({40}, at::kFloat);
  const at::Tensor x64 = exact(x), weight64 = exact(weight.value), bias64 = exact(bias.value);
  if (frozen) freeze(weight), freeze(bias);
  const at::Tensor y = ops::linear_gelu(x, weight, bias, kind);
  y.backward(dy);
  const at::Tensor z64 = at::addmm(bias64, x64, weight64.t());
  const at::Tensor y64 = kind == ops::Gelu::quick
                             ? z64 * at::sigmoid(z64 * 1.702)
                             : at::gelu(z64, kind == ops::Gelu::tanh ? "tanh" : "none");
  y64.backward(dy.to(at::kDouble));
  const Bounded z = test::times(x, weight.value, at::kFloat) + bias.value,
                dz = dy * test::gelu_slope(z, kind);
  REQUIRE(far(y, y64, test::gelu(z, kind)) == "");
  REQUIRE(far(x.grad(), x64.grad(), test::input_gradient(dz, weight.value, at::kFloat)) == "");
  if (frozen) return;
  REQUIRE(far(weight.gradient, weight64.grad(), test::weight_gradient(dz, x)) == "");
  REQUIRE(far(bias.gradient, bias64.grad(), test::row_sum(dz)) == "");
}

TEST_CASE("gelu_linear equals the linear map of bias_gelu bit for bit", "[kernels][cpu]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto kind = GENERATE(ops::Gelu::erf, ops::Gelu::tanh, ops::Gelu::quick);
  const bool weight_frozen = GENERATE(false, true), bias_frozen = GENERATE(false, true),
             with_bias = GENERATE(false, true), fp8 = GENERATE(false, true);
  const auto keep = GENERATE(ops::Keep::nothing, ops::Keep::input);
  if (fp8 && dtype == at::kFloat) return;
  CAPTURE(c10::toString(dtype), weight_frozen, bias_frozen, with_bias, fp8, keep);
  const auto gradients = [&](bool fused) {
    test::Random random(6);
    const at::Tensor z = leaf(random({16, 32}, dtype)), dy = random({16, 48}, dtype);
    Parameter input_bias = random.parameter({32}, dtype), bias = random.parameter({48}, dtype),
              weight = random.parameter({48, 32}, dtype);
    weight.fp8 = fp8;
    if (weight_frozen) freeze(weight);
    if (bias_frozen) freeze(input_bias), freeze(bias);
    Parameter* own = with_bias ? &bias : nullptr;
    const at::Tensor y = fused ? ops::gelu_linear(z, input_bias, weight, own, kind, keep)
                               : ops::linear(ops::bias_gelu(z, input_bias, kind), weight, own);
    y.backward(dy);
    return std::vector<at::Tensor>{y.detach(), z.grad(), input_bias.gradient, weight.gradient,
                                   bias.gradient};
  };
  const auto fused = gradients(true), apart = gradients(false);
  for (std::size_t i = 0; i < fused.size(); ++i) {
    CAPTURE(i);
    REQUIRE(fused[i].defined() == apart[i].defined());
    if (fused[i].defined()) REQUIRE(at::equal(fused[i], apart[i]));
  }
}

TEST_CASE("swiglu_linear equals its formula and gradients, the weight frozen or not",
          "[kernels][cpu]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool frozen = GENERATE(false, true);
  CAPTURE(c10::toString(dtype), frozen);
  test::Random random(5);
  const at::Tensor gate_up = leaf(random({19, 2 * 12}, dtype)), dy = random({19, 7}, dtype);
  Parameter weight = random.parameter({7, 12}, dtype);
  const at::Tensor gate_up64 = exact(gate_up), weight64 = exact(weight.value);
  if (frozen) freeze(weight);
  const at::Tensor y = ops::swiglu_linear(gate_up, weight);
  y.backward(dy);
  const at::Tensor h64 = at::silu(gate_up64.narrow(1, 0, 12)) * gate_up64.narrow(1, 12, 12);
  const at::Tensor y64 = at::mm(h64, weight64.t());
  y64.backward(dy.to(at::kDouble));
  const Bounded both(gate_up), gate = narrowed(both, 1, 0, 12), up = narrowed(both, 1, 12, 12);
  const Bounded h = rounded(test::silu(gate) * up, dtype),
                dh = test::input_gradient(dy, weight.value, dtype),
                dgate = dh * up * test::silu_slope(gate), dup = dh * test::silu(gate);
  REQUIRE(far(y, y64, test::times(h, weight.value, dtype)) == "");
  REQUIRE(far(gate_up.grad(), gate_up64.grad(), rounded(joined(dgate, dup, 1), dtype)) == "");
  if (!frozen) REQUIRE(far(weight.gradient, weight64.grad(), test::weight_gradient(dy, h)) == "");
}

TEST_CASE("a gate opens by GELU, too", "[kernels][cpu]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  test::Random random(5);
  const at::Tensor gate_up = leaf(random({19, 2 * 12}, dtype)), dy = random({19, 12}, dtype);
  const at::Tensor gate_up64 = exact(gate_up);
  const at::Tensor y = test::swiglu(gate_up, ops::GateActivation::gelu);
  y.backward(dy);
  const at::Tensor y64 = at::gelu(gate_up64.narrow(1, 0, 12), "tanh") * gate_up64.narrow(1, 12, 12);
  y64.backward(dy.to(at::kDouble));
  const double allowed = 2 * test::unit_roundoff(dtype) + 0x1p-22;
  REQUIRE(test::relative_error(y, y64) < allowed);
  REQUIRE(test::relative_error(gate_up.grad(), gate_up64.grad()) < allowed);
}

TEST_CASE("swiglu_linear and swiglu with linear are the same", "[kernels][cpu]") {
  test::Random random(6);
  const at::Tensor a = leaf(random({9, 16})), b = leaf(a), dy = random({9, 4});
  Parameter one = random.parameter({4, 8}, at::kFloat), other = one;
  other.gradient = at::zeros_like(one.gradient);
  const at::Tensor y = ops::swiglu_linear(a, one), z = ops::linear(test::swiglu(b), other, nullptr);
  y.backward(dy);
  z.backward(dy);
  REQUIRE(y.equal(z));
  REQUIRE(a.grad().equal(b.grad()));
  REQUIRE(one.gradient.equal(other.gradient));
}

TEST_CASE("gated_linear equals linear and swiglu_linear, frozen weights and FP8 included",
          "[kernels][fp8]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const bool fp8 = GENERATE(false, true), train_both = GENERATE(false, true),
             train_down = GENERATE(false, true), input = GENERATE(false, true);
  // 24 inputs of the second product are too few for FP8.
  const auto [rows, width, hidden] =
      GENERATE(std::tuple{48, 16, 32}, std::tuple{48, 16, 24}, std::tuple{64, 48, 24},
               std::tuple{208, 96, 160}, std::tuple{2048, 896, 4864});
  const auto keep = GENERATE(ops::Keep::nothing, ops::Keep::input);
  const auto gate = GENERATE(ops::GateActivation::silu, ops::GateActivation::gelu);
  CAPTURE(device.str(), c10::toString(dtype), fp8, train_both, train_down, input, rows, hidden,
          keep, gate);
  if (!train_both && !train_down && !input) return;
  if (!test::worth_it(device, rows * hidden)) return;
  if (fp8 && dtype == at::kFloat && device.is_cuda()) return;  // 16-bit types only
  const auto normal = [&](at::IntArrayRef sizes, double scale) {
    return at::randn(sizes, at::TensorOptions(device).dtype(dtype)) * scale;
  };
  const at::Tensor given = normal({rows, width}, 1), first = normal({2 * hidden, width}, 0.1),
                   second = normal({width, hidden}, 0.1), dy = normal({rows, width}, 1e-2);
  const auto run = [&](bool in_one) {
    const at::Tensor x = input ? leaf(given) : given;
    Parameter both = test::parameter_of(first), down = test::parameter_of(second);
    both.fp8 = down.fp8 = fp8;
    if (!train_both) freeze(both);
    if (!train_down) freeze(down);
    at::Tensor y;
    for (int step = 0; step < 2; ++step) {
      y = in_one ? ops::gated_linear(x, both, down, nullptr, keep, gate)
                 : ops::swiglu_linear(ops::linear(x, both, nullptr), down, gate);
      y.backward(dy);
    }
    return test::Tensors{y.detach(), x.grad(), both.gradient, down.gradient};
  };
  (void)run(false);  // a GPU chooses the algorithms of its products
  const auto one = run(true), parts = run(false);
  for (std::size_t i = 0; i < one.size(); ++i) {
    CAPTURE(i);
    REQUIRE(one[i].defined() == parts[i].defined());
    if (!one[i].defined()) continue;
    // A looser bound leaves codes as they are, but for gradients too small for e5m2.
    if (fp8) {
      REQUIRE(test::relative_error(one[i], parts[i]) < 1e-5);
    } else {
      REQUIRE(one[i].equal(parts[i]));
    }
  }
}

TEST_CASE("a low-rank term is added to its columns only, with its gradients", "[kernels][cpu]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const bool all = GENERATE(false, true);  // then the term comes first
  CAPTURE(c10::toString(dtype), all);
  test::Random random(7);
  const std::int64_t rows = 11, in = 16, rank = 3, out = all ? 12 : 5, column = all ? 0 : 4;
  const at::Tensor x = leaf(random({rows, in}, dtype)), dy = random({rows, 12}, dtype);
  Parameter weight = random.parameter({12, in}, dtype), a = random.parameter({rank, in}, dtype),
            b = random.parameter({out, rank}, dtype);
  const at::Tensor x64 = exact(x), a64 = exact(a.value), b64 = exact(b.value);
  const at::Tensor base64 = at::mm(x64, weight.value.to(at::kDouble).t());
  const at::Tensor plain = ops::linear(x, weight, nullptr).detach();
  const at::Tensor y =
      ops::adapted_linear(x, weight, nullptr, {{.a = &a, .b = &b, .scale = 1.5, .column = column}});
  y.backward(dy);
  const at::Tensor term64 = at::mm(at::mm(x64, a64.t()), b64.t()) * 1.5;
  const at::Tensor dy64 = dy.to(at::kDouble);
  (base64 * dy64).sum().backward();
  (term64 * dy64.narrow(1, column, out)).sum().backward();
  at::Tensor y64 = base64.detach().clone();
  y64.narrow(1, column, out).add_(term64.detach());
  const Bounded base = test::times(x, weight.value, dtype), u = test::times(x, a.value, dtype),
                dterm(dy.narrow(1, column, out)),
                du = rounded(product(dterm, b.value) * 1.5, dtype),
                term = product(u, test::transposed(b.value)) * 1.5;
  if (all) {
    const Bounded sum = rounded(term, dtype) +
                        product(Bounded(exact(x).detach()), test::transposed(exact(weight.value)));
    REQUIRE(far(y, y64, rounded(sum, dtype)) == "");
  } else {
    const Bounded y_bound =
        joined(joined(narrowed(base, 1, 0, column),
                      rounded(rounded(narrowed(base, 1, column, out) + term, dtype), dtype), 1),
               narrowed(base, 1, column + out, 12 - column - out), 1);
    REQUIRE(far(y, y64, y_bound) == "");
    REQUIRE(y.narrow(1, 0, column).equal(plain.narrow(1, 0, column)));
    REQUIRE(y.narrow(1, 9, 3).equal(plain.narrow(1, 9, 3)));
  }
  const Bounded dx =
      test::input_gradient(dy, weight.value, dtype) + test::input_gradient(du, a.value, dtype);
  REQUIRE(far(x.grad(), x64.grad(), rounded(dx, dtype)) == "");
  REQUIRE(far(a.gradient, a64.grad(), test::weight_gradient(du, x)) == "");
  REQUIRE(far(b.gradient, b64.grad(), rounded(product(transposed(dterm), u) * 1.5)) == "");
}

TEST_CASE("low-rank terms train although everything below them is frozen", "[kernels][cpu]") {
  test::Random random(8);
  const at::Tensor x = random({6, 8});
  Parameter weight = random.parameter({5, 8}, at::kFloat), a = random.parameter({2, 8}, at::kFloat),
            b = random.parameter({5, 2}, at::kFloat);
  freeze(weight);
  const bool freeze_a = GENERATE(false, true);
  if (freeze_a) freeze(a);
  empty_gradient(b);
  ops::adapted_linear(x, weight, nullptr, {{.a = &a, .b = &b, .scale = 2}}).sum().backward();
  const at::Tensor dy = at::ones({6, 5});
  REQUIRE(far(b.gradient, test::weight_gradient(dy, test::times(x, a.value, at::kFloat)) * 2) ==
          "");
  if (freeze_a) return;
  const Bounded du = test::input_gradient(dy, b.value, at::kFloat) * 2;
  REQUIRE(far(a.gradient, test::weight_gradient(du, x)) == "");
}

TEST_CASE("a low-rank term is added in evaluation too", "[kernels][cpu]") {
  test::Random random(11);
  const c10::AutoGradMode off(false);
  const at::Tensor x = random({6, 8});
  Parameter weight = random.parameter({5, 8}, at::kFloat), a = random.parameter({2, 8}, at::kFloat),
            b = random.parameter({5, 2}, at::kFloat);
  const at::Tensor y = ops::adapted_linear(x, weight, nullptr, {{.a = &a, .b = &b, .scale = 2}});
  const Bounded u = test::times(x, a.value, at::kFloat);
  REQUIRE(far(y, test::times(x, weight.value, at::kFloat) +
                     test::times(u, b.value, at::kFloat) * 2) == "");
  REQUIRE_FALSE(y.requires_grad());
}

TEST_CASE("dropout of a low-rank term drops its share, by seed, alike in both directions",
          "[kernels][cpu]") {
  test::Random random(9);
  const std::int64_t rows = 200, in = 64;
  const at::Tensor x = leaf(at::ones({rows, in}));
  Parameter weight = random.parameter({in, in}, at::kFloat),
            a = random.parameter({in, in}, at::kFloat), b = random.parameter({in, in}, at::kFloat);
  weight.value.zero_();
  a.value.zero_().fill_diagonal_(1);
  b.value.zero_().fill_diagonal_(1);
  const auto run = [&](std::int64_t seed) {
    return ops::adapted_linear(
        x, weight, nullptr,
        {{.a = &a, .b = &b, .mask = {.share = 0.25, .seed = at::full({}, seed, at::kLong)}}});
  };
  const at::Tensor y = run(1);
  const double kept = y.detach().ne(0).to(at::kDouble).mean().item<double>();
  // Six standard deviations of the share that rows * in draws keep.
  REQUIRE(std::abs(kept - 0.75) < 6 * std::sqrt(0.75 * 0.25 / static_cast<double>(rows * in)));
  // Sums of zeros and one number: 1 / 0.75, rounded.
  REQUIRE(y.detach().masked_select(y.detach().ne(0)).eq(1 / 0.75F).all().item<bool>());
  REQUIRE(y.equal(run(1)));
  REQUIRE_FALSE(y.equal(run(2)));
  y.sum().backward();
  REQUIRE(x.grad().ne(0).equal(y.detach().ne(0)));
}

TEST_CASE("several low-rank terms give what each gives by itself, with a bias and dropout",
          "[kernels][cpu]") {
  const double share = GENERATE(0.0, 0.25);
  const bool biased = GENERATE(false, true);
  CAPTURE(share, biased);
  test::Random random(12);
  const at::Tensor x = leaf(random({7, 16})), dy = random({7, 24});
  Parameter weight = random.parameter({24, 16}, at::kFloat),
            bias = random.parameter({24}, at::kFloat);
  std::vector<Parameter> a, b;
  for (const std::int64_t rank : {3, 5}) {
    a.push_back(random.parameter({rank, 16}, at::kFloat));
    b.push_back(random.parameter({rank == 3 ? 16 : 8, rank}, at::kFloat));
  }
  const ops::DropMask mask{.share = share, .seed = at::full({}, 4, at::kLong)};
  std::vector<ops::LowRankTerm> terms = {
      {.a = &a[0], .b = &b[0], .scale = 2, .column = 0, .mask = mask},
      {.a = &a[1], .b = &b[1], .scale = 0.5, .column = 16, .mask = mask}};
  terms[1].mask.place = 9;
  Parameter* with = biased ? &bias : nullptr;
  const at::Tensor y = ops::adapted_linear(x, weight, with, terms);
  y.backward(dy);
  // Their sum, less the plain map that each of them has in it.
  const at::Tensor z = leaf(x);
  std::vector<at::Tensor> gradients = {a[0].gradient.clone(), a[1].gradient.clone()};
  for (Parameter& parameter : a) empty_gradient(parameter);
  for (Parameter& parameter : b) empty_gradient(parameter);
  freeze(weight);
  freeze(bias);
  const at::Tensor apart = ops::adapted_linear(z, weight, with, {terms[0]}) +
                           ops::adapted_linear(z, weight, with, {terms[1]}) -
                           ops::linear(z, weight, with);
  apart.backward(dy);
  REQUIRE(test::relative_error(y, apart) < 1e-6);
  REQUIRE(test::relative_error(x.grad(), z.grad()) < 1e-6);
  for (std::size_t t = 0; t < 2; ++t)
    REQUIRE(test::relative_error(gradients[t], a[t].gradient) < 1e-6);
}

TEST_CASE("wrong shapes of low-rank terms and gated products are named", "[kernels][cpu]") {
  test::Random random(10);
  Parameter weight = random.parameter({6, 8}, at::kFloat), a = random.parameter({2, 8}, at::kFloat),
            b = random.parameter({5, 2}, at::kFloat);
  const auto message = [](const auto& call) {
    try {
      (void)call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string low_rank = message([&] {
    return ops::adapted_linear(random({3, 8}), weight, nullptr, {{.a = &a, .b = &b, .column = 2}});
  });
  REQUIRE(low_rank.find("x [3, 8], weight [6, 8], a [2, 8], b [5, 2], column 2") !=
          std::string::npos);
  const std::string gated = message([&] { return ops::swiglu_linear(random({3, 18}), a); });
  REQUIRE(gated.find("gate_up [3, 18], weight [2, 8]") != std::string::npos);
}

}  // namespace
}  // namespace dstrain
