#include <ATen/ops/cat.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "engine/kernels/loss/ops_linear_preference.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

using test::exact;
using test::far;
using test::leaf;
using Kind = ops::PairLoss::Kind;

/// Three pairs of 12 rows, of prompts and answers of unequal lengths, and a filler.
struct PairCase {
  static constexpr std::int64_t kPairs = 4, kRows = 12;

  PairCase(test::Random& random, std::int64_t classes)
      : labels((random({kPairs * kRows}).abs() * 10000).to(at::kLong).remainder(classes)),
        weights(at::zeros({kPairs * kRows}, labels.options().dtype(at::kFloat))),
        references(random({kPairs, 2}) * 3 - 8),
        totals(at::zeros({4}, references.options())),
        figures(at::zeros({ops::kPairFigures}, references.options())) {
    const std::int64_t begins[3][4] = {{2, 5, 7, 9}, {0, 1, 1, 12}, {3, 8, 9, 11}};
    for (std::int64_t b = 0; b < 3; ++b) {
      weights.narrow(0, b * kRows + begins[b][0], begins[b][1] - begins[b][0]).fill_(1);
      weights.narrow(0, b * kRows + begins[b][2], begins[b][3] - begins[b][2]).fill_(-1);
    }
  }
  [[nodiscard]] PairCase with_new_sums() const {
    PairCase copy = *this;
    copy.totals = at::zeros_like(totals);
    copy.figures = at::zeros_like(figures);
    return copy;
  }
  [[nodiscard]] ops::PairTargets targets() const { return {labels, weights, references}; }
  [[nodiscard]] ops::PairSums sums() const { return {totals, figures}; }

  at::Tensor labels, weights, references, totals, figures;
};

/// In double, by ATen's own gradients, with the papers' formulas.
struct ExpectedPairs {
  at::Tensor dx, dtable, totals, figures, logps;
};

ExpectedPairs expected_of(const at::Tensor& x, const Parameter& table, const PairCase& c,
                          const ops::PairLoss& loss, double scale) {
  const at::Tensor x64 = exact(x), table64 = exact(table.value);
  const at::Tensor rows = at::log_softmax(at::mm(x64, table64.t()), 1)
                              .gather(1, c.labels.cpu().unsqueeze(1))
                              .view({PairCase::kPairs, PairCase::kRows})
                              .narrow(0, 0, 3);
  const at::Tensor side =
      c.weights.cpu().to(at::kDouble).view({PairCase::kPairs, PairCase::kRows}).narrow(0, 0, 3);
  const at::Tensor reference = c.references.cpu().to(at::kDouble).narrow(0, 0, 3);
  const at::Tensor w = (rows * side.gt(0)).sum(1), l = (rows * side.lt(0)).sum(1);
  const at::Tensor mw = w / side.gt(0).sum(1), ml = l / side.lt(0).sum(1);
  const at::Tensor rw = w - reference.select(1, 0), rl = l - reference.select(1, 1);
  const auto odds = [](const at::Tensor& m) { return m - (-at::expm1(m)).log(); };
  const double b = loss.beta;
  at::Tensor each;
  switch (loss.kind) {
    case Kind::none:
      break;
    case Kind::dpo:
      each = -(1 - loss.smoothing) * at::log_sigmoid(b * (rw - rl)) -
             loss.smoothing * at::log_sigmoid(-b * (rw - rl));
      break;
    case Kind::ipo:
      each = (rw / side.gt(0).sum(1) - rl / side.lt(0).sum(1) - 1 / (2 * b)).square();
      break;
    case Kind::simpo:
      each = -at::log_sigmoid(b * (mw - ml) - loss.gamma);
      break;
    case Kind::orpo:
      each = -mw - b * at::log_sigmoid(odds(mw) - odds(ml));
      break;
  }
  (each.sum() * scale).backward();
  const bool means = loss.kind == Kind::simpo || loss.kind == Kind::orpo;
  const at::Tensor reward_w = (means ? mw : rw) * b, reward_l = (means ? ml : rl) * b;
  const at::Tensor zero = at::zeros({}, at::kDouble);
  return {
      .dx = x64.grad(),
      .dtable = table64.grad(),
      .totals = at::stack({each.sum(), reward_w.gt(reward_l).sum().to(at::kDouble), zero, zero + 3})
                    .detach(),
      .figures = at::stack({reward_w.sum(), reward_l.sum(), (means ? mw : w).sum(),
                            (means ? ml : l).sum()})
                     .detach(),
      .logps = at::stack({w, l}, 1).detach()};
}

TEST_CASE("losses of pairs have the gradients of their formulas", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16})));
  const auto kind = GENERATE(Kind::dpo, Kind::ipo, Kind::simpo, Kind::orpo);
  const double smoothing = kind == Kind::dpo ? GENERATE(0.0, 0.2) : 0.0;
  const std::int64_t classes = GENERATE(17, 1000);
  CAPTURE(device.str(), c10::toString(dtype), kind, smoothing, classes);
  test::Random random(3, device);
  const std::int64_t width = 24;
  const at::Tensor x = leaf(random({PairCase::kPairs * PairCase::kRows, width}, dtype) * 0.3);
  Parameter table = random.parameter({classes, width}, dtype);
  const PairCase c(random, classes);
  const ops::PairLoss loss{.kind = kind, .beta = 0.3, .gamma = 0.4, .smoothing = smoothing};
  const ExpectedPairs expected = expected_of(x, table, c, loss, 2);

  const at::Tensor scalar = ops::linear_pair_loss(x, table, c.targets(), loss, c.sums());
  REQUIRE(c.totals.eq(0).all().item<bool>());  // all is done in backward
  (scalar * 2).backward();
  // Logits of 16 bits make each row's loss uncertain by a unit of theirs.
  const double close = dtype == at::kFloat ? 1e-5 : 0.02;
  CAPTURE(c.totals, expected.totals, c.figures, expected.figures);
  REQUIRE(test::relative_error(c.totals, expected.totals) < close);
  REQUIRE(test::relative_error(c.figures, expected.figures) < close);
  REQUIRE(test::relative_error(x.grad(), expected.dx) < 4 * close);
  REQUIRE(test::relative_error(table.gradient, expected.dtable) < 4 * close);
  REQUIRE(x.grad().masked_select(c.weights.eq(0).unsqueeze(1)).eq(0).all().item<bool>());

  // Without gradients it is the same, and so are the log-probabilities, to the bit.
  const c10::AutoGradMode off(false);
  const PairCase again = c.with_new_sums();
  REQUIRE(
      ops::linear_pair_loss(x, table, again.targets(), loss, again.sums()).equal(again.totals[0]));
  if (device.is_cpu()) REQUIRE(again.totals.equal(c.totals));
  const at::Tensor logps = ops::answer_log_probabilities(x, table, c.targets());
  REQUIRE(test::relative_error(logps.narrow(0, 0, 3), expected.logps) < close);
  REQUIRE(logps[3].eq(0).all().item<bool>());
  const at::Tensor totals = at::zeros_like(c.totals), figures = at::zeros_like(c.figures);
  (void)ops::linear_pair_loss(x, table, {c.labels, c.weights, logps}, {.kind = Kind::dpo},
                              {totals, figures});
  if (device.is_cpu()) {
    REQUIRE(figures[0].item<float>() == 0);
    REQUIRE(figures[1].item<float>() == 0);
    REQUIRE(totals[0].item<double>() == Approx(3 * std::log(2)));
  }
}

TEST_CASE("a certain answer has finite odds", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  test::Random random(5, device);
  const at::Tensor x = leaf(at::zeros({4, 8}, random({1}).options()) + 1);
  Parameter table = random.parameter({8, 8}, at::kFloat);
  table.value.zero_();
  table.value[2].fill_(40);  // its probability is 1 in fp32
  const at::Tensor labels = at::zeros({4}, x.options().dtype(at::kLong)) + 2;
  const at::Tensor weights = test::floats({1, 1, -1, 0}).to(device);
  const at::Tensor totals = at::zeros({4}, weights.options()),
                   figures = at::zeros({ops::kPairFigures}, weights.options());
  ops::linear_pair_loss(x, table, {labels, weights, at::zeros({1, 2}, weights.options())},
                        {.kind = Kind::orpo}, {totals, figures})
      .backward();
  REQUIRE(totals[0].item<double>() == Approx(0.1 * std::log(2)));
  REQUIRE(x.grad().isfinite().all().item<bool>());
  REQUIRE(table.gradient.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace dstrain
