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

}  // namespace
}  // namespace dstrain
