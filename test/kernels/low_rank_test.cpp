#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Several low-rank terms of one map with dropout, on the CPU by operators apart, on a GPU by
/// kernels that draw the masks themselves.
namespace dstrain {
namespace {

using test::Bounded;
using test::far;

TEST_CASE("low-rank terms with dropout and their gradients are the formula's", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const auto ranks = GENERATE(std::vector<std::int64_t>{8}, std::vector<std::int64_t>{16, 8, 32},
                              std::vector<std::int64_t>{64, 64, 48, 8},
                              std::vector<std::int64_t>{128}, std::vector<std::int64_t>{3, 5});
  const auto [rows, in] = GENERATE(std::tuple{5, 64}, std::tuple{130, 72}, std::tuple{1000, 200});
  const bool part = GENERATE(false, true);    // x is a part of a larger tensor
  const int frozen = GENERATE(0, 1, 2);       // 1: the first a, 2: every a
  const bool narrow = GENERATE(false, true);  // gradients of 16 bits
  if (!test::worth_it(device, rows * in) || (!device.is_cuda() && frozen != 0)) return;
  if (narrow && (dtype != at::kBFloat16 || frozen != 0)) return;
  CAPTURE(device.str(), c10::toString(dtype), ranks, rows, in, part, frozen, narrow);
  constexpr std::int64_t kOut = 16;  // of a term
  constexpr double kScale = 1.5, kShare = 0.2;
  const auto count = static_cast<std::int64_t>(ranks.size());
  test::Random random(14, device);
  const at::Tensor x = test::leaf(random({rows, in}, dtype)),
                   dy = random({rows, count * kOut}, dtype);
  Parameter weight = random.parameter({count * kOut, in}, dtype);
  weight.trainable = false;
  weight.gradient = at::Tensor();
  std::vector<Parameter> a, b;
  for (std::size_t t = 0; t < ranks.size(); ++t) {
    a.push_back(random.parameter({ranks[t], in}, dtype));
    b.push_back(random.parameter({kOut, ranks[t]}, dtype));
    if (narrow) a[t].gradient = a[t].gradient.to(at::kBFloat16);
    if (frozen == 2 || (frozen == 1 && t == 0)) a[t].trainable = false;
  }
  std::vector<ops::LowRankTerm> terms;
  std::vector<Bounded> stays;  // what each mask multiplies x by
  const at::Tensor seed = at::full({}, 41, at::kLong),
                   order = at::arange(rows, at::kInt).flip(0).add(7).contiguous();
  for (std::size_t t = 0; t < ranks.size(); ++t) {
    ops::DropMask mask{.share = kShare, .seed = seed, .place = 5 + t};
    if (part) {
      mask.rows = order;
      mask.whole_columns = in + 16;
      mask.first_column = 8;
    }
    stays.emplace_back(ops::drop(at::ones({rows, in}), mask));
    mask.seed = mask.seed.to(device);
    if (part) mask.rows = mask.rows.to(device);
    terms.push_back({.a = &a[t],
                     .b = &b[t],
                     .scale = kScale,
                     .column = static_cast<std::int64_t>(t) * kOut,
                     .mask = mask});
  }
  const at::Tensor y = ops::adapted_linear(x, weight, nullptr, terms);
  y.backward(dy);
  const auto dropped_of = [&](const Bounded& of, std::size_t t) {
    return rounded(Bounded(of.value * stays[t].value, of.error * stays[t].value), dtype);
  };
  Bounded dx(at::zeros({rows, in}));
  for (std::size_t t = 0; t < ranks.size(); ++t) {
    CAPTURE(t);
    const std::int64_t column = static_cast<std::int64_t>(t) * kOut;
    const Bounded own_dy(dy.narrow(1, column, kOut)),
        dropped = dropped_of(x, t), u = test::times(dropped, a[t].value, dtype),
        term = rounded(product(u, test::transposed(b[t].value)) * kScale, dtype),
        base = test::times(x, weight.value.narrow(0, column, kOut), dtype);
    REQUIRE(far(y.narrow(1, column, kOut), rounded(term + base, dtype)) == "");
    const Bounded du = rounded(product(own_dy, b[t].value) * kScale, dtype);
    if (a[t].trainable) {
      const Bounded da = test::weight_gradient(du, dropped);
      REQUIRE(far(a[t].gradient, narrow ? rounded(da, at::kBFloat16) : da) == "");
    }
    REQUIRE(far(b[t].gradient, rounded(product(transposed(own_dy), u) * kScale)) == "");
    dx = rounded(dx + dropped_of(test::input_gradient(du, a[t].value, dtype), t), dtype);
  }
  REQUIRE(far(x.grad(), rounded(dx + test::input_gradient(dy, weight.value, dtype), dtype)) == "");
}

TEST_CASE("gradients of low-rank terms of many outputs are the formula's", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kBFloat16, at::kHalf})));
  const auto ranks =
      GENERATE(std::vector<std::int64_t>{8}, std::vector<std::int64_t>{16, 32},
               std::vector<std::int64_t>{24, 8, 16}, std::vector<std::int64_t>{4, 8, 64});
  const auto [rows, out] =
      GENERATE(std::tuple{2, 4096}, std::tuple{77, 4104}, std::tuple{500, 5000});
  const bool narrow = GENERATE(false, true);  // gradients of 16 bits
  if ((!device.is_cuda() && rows > 2) || (narrow && dtype != at::kBFloat16)) return;
  CAPTURE(device.str(), c10::toString(dtype), ranks, rows, out, narrow);
  constexpr std::int64_t kIn = 16;
  constexpr double kScale = 0.5;
  const auto count = static_cast<std::int64_t>(ranks.size());
  test::Random random(15, device);
  const at::Tensor x = test::leaf(random({rows, kIn}, dtype)),
                   dy = random({rows, count * out}, dtype);
  Parameter weight = random.parameter({count * out, kIn}, dtype);
  weight.trainable = false;
  weight.gradient = at::Tensor();
  std::vector<Parameter> a, b;
  for (const std::int64_t rank : ranks) {
    a.push_back(random.parameter({rank, kIn}, dtype));
    b.push_back(random.parameter({out, rank}, dtype));
    if (narrow) b.back().gradient = b.back().gradient.to(at::kBFloat16);
  }
  std::vector<ops::LowRankTerm> terms;
  for (std::size_t t = 0; t < ranks.size(); ++t)
    terms.push_back(
        {.a = &a[t], .b = &b[t], .scale = kScale, .column = static_cast<std::int64_t>(t) * out});
  ops::adapted_linear(x, weight, nullptr, terms).backward(dy);
  for (std::size_t t = 0; t < ranks.size(); ++t) {
    CAPTURE(t);
    const Bounded own_dy(dy.narrow(1, static_cast<std::int64_t>(t) * out, out)),
        u = test::times(x, a[t].value, dtype),
        du = rounded(product(own_dy, b[t].value) * kScale, dtype);
    const Bounded db = rounded(product(transposed(own_dy), u) * kScale);
    REQUIRE(far(b[t].gradient, narrow ? rounded(db, at::kBFloat16) : db) == "");
    REQUIRE(far(a[t].gradient, test::weight_gradient(du, x)) == "");
  }
}

TEST_CASE("a low-rank term of a gated product, made again in backward, is the formula's",
          "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16, at::kHalf})));
  const std::int64_t rank = GENERATE(5, 8, 16, 24, 48, 64, 80);
  const auto [rows, in] = GENERATE(std::tuple{5, 64}, std::tuple{130, 72}, std::tuple{1000, 200});
  const auto gate_kind = GENERATE(ops::GateActivation::silu, ops::GateActivation::gelu);
  const double share = GENERATE(0.0, 0.2);
  const bool train_weight = GENERATE(false, true), train_a = GENERATE(true, false);
  if (!test::worth_it(device, rows * in) || (!train_a && rank != 16)) return;
  CAPTURE(device.str(), c10::toString(dtype), rank, rows, in, gate_kind, share, train_weight,
          train_a);
  constexpr std::int64_t kOut = 40;
  constexpr double kScale = 1.5;
  test::Random random(16, device);
  const at::Tensor gate_up = test::leaf(random({rows, 2 * in}, dtype)),
                   dy = random({rows, kOut}, dtype);
  Parameter weight = random.parameter({kOut, in}, dtype), a = random.parameter({rank, in}, dtype),
            b = random.parameter({kOut, rank}, dtype);
  weight.trainable = train_weight;
  if (!train_weight) weight.gradient = at::Tensor();
  a.trainable = train_a;
  ops::DropMask mask{.share = share, .seed = at::full({}, 41, at::kLong), .place = 5};
  const Bounded stays(share == 0 ? at::ones({rows, in}) : ops::drop(at::ones({rows, in}), mask));
  mask.seed = mask.seed.to(device);
  const at::Tensor y = ops::adapted_swiglu_linear(
      gate_up, weight, {{.a = &a, .b = &b, .scale = kScale, .column = 0, .mask = mask}}, gate_kind);
  y.backward(dy);
  const auto dropped_of = [&](const Bounded& of) {
    return test::rounded(Bounded(of.value * stays.value, of.error * stays.value), dtype);
  };
  const bool silu = gate_kind == ops::GateActivation::silu;
  const Bounded both(gate_up),
      gate = test::narrowed(both, 1, 0, in), up = test::narrowed(both, 1, in, in),
      opened = silu ? test::silu(gate) : test::gelu(gate, ops::Gelu::tanh),
      slope = silu ? test::silu_slope(gate) : test::gelu_slope(gate, ops::Gelu::tanh);
  const Bounded h = test::rounded(opened * up, dtype), dropped = dropped_of(h),
                u = test::times(dropped, a.value, dtype),
                term = test::rounded(test::product(u, test::transposed(b.value)) * kScale, dtype);
  REQUIRE(far(y, test::rounded(term + test::times(h, weight.value, dtype), dtype)) == "");
  const Bounded du = test::rounded(test::product(dy, b.value) * kScale, dtype),
                dh = test::rounded(test::input_gradient(dy, weight.value, dtype) +
                                       dropped_of(test::input_gradient(du, a.value, dtype)),
                                   dtype);
  REQUIRE(far(gate_up.grad(),
              test::rounded(test::joined(dh * up * slope, dh * opened, 1), dtype)) == "");
  REQUIRE(far(b.gradient, test::rounded(test::product(test::transposed(dy), u) * kScale)) == "");
  if (train_a) REQUIRE(far(a.gradient, test::weight_gradient(du, dropped)) == "");
  if (train_weight) REQUIRE(far(weight.gradient, test::weight_gradient(dy, h)) == "");
}

}  // namespace
}  // namespace dstrain
