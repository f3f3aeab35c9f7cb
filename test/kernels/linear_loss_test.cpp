#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "engine/base/error.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/devices.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Bounded;
using test::exact;
using test::far;
using test::floats;
using test::indices;
using test::leaf;

/// `rows` labels below `classes`, some rows of weight 0, one of weight 2.
struct LinearLossCase {
  LinearLossCase(test::Random& random, std::int64_t rows, std::int64_t classes)
      : labels((random({rows}).abs() * 10000).to(at::kLong).remainder(classes)),
        weights(random({rows}).gt(-0.5).to(at::kFloat)),
        totals(at::zeros({4}, weights.options())) {
    weights[0] = 2;
  }
  at::Tensor labels, weights, totals;
};

struct Expected {
  at::Tensor loss, dx, dtable, top1;
  Bounded loss_bound, dx_bound, dtable_bound;
};

/// In double, by ATen, with the scalar's gradient 3.
Expected expected_of(const at::Tensor& x, const Parameter& table, const LinearLossCase& c) {
  const at::Tensor x64 = exact(x), table64 = exact(table.value), logits = at::mm(x64, table64.t()),
                   labels = c.labels.cpu(), weights = c.weights.cpu();
  const at::Tensor each = at::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
  const at::Tensor loss = (each * weights.to(at::kDouble)).sum();
  (loss * 3).backward();
  const at::Tensor hit = logits.argmax(1).eq(labels);
  const auto dtype = x.scalar_type();
  const test::LossBounds bounds =
      test::cross_entropy(test::times(x, table.value, dtype), labels, weights, 0, 3);
  const Bounded dlogits = rounded(bounds.dlogits, dtype);
  return {.loss = loss.detach(),
          .dx = x64.grad(),
          .dtable = table64.grad(),
          .top1 = (hit * weights).sum(),
          .loss_bound = bounds.loss,
          .dx_bound = test::input_gradient(dlogits, table.value, dtype),
          .dtable_bound = test::weight_gradient(dlogits, x)};
}

TEST_CASE("linear_cross_entropy equals that of ATen with its gradients, and in evaluation itself",
          "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16})));
  const auto [rows, width, classes] =
      GENERATE(std::tuple{37, 24, 5}, std::tuple{37, 24, 16}, std::tuple{37, 24, 1003},
               std::tuple{20, 8, 50}, std::tuple{1, 64, 17}, std::tuple{300, 64, 17},
               std::tuple{1, 64, 1000}, std::tuple{300, 64, 1000}, std::tuple{1, 64, 32003},
               std::tuple{300, 64, 32003});
  if (device.is_cpu() && rows * classes > 40'000) return;
  CAPTURE(device.str(), c10::toString(dtype), rows, classes);
  test::Random random(1, device);
  const at::Tensor x = leaf(random({rows, width}, dtype));
  Parameter table = random.parameter({classes, width}, dtype);
  const LinearLossCase c(random, rows, classes);
  const Expected expected = expected_of(x, table, c);

  const at::Tensor loss = ops::linear_cross_entropy(x, table, c.labels, c.weights, c.totals);
  REQUIRE(c.totals.eq(0).all().item<bool>());  // all is done in backward
  (loss * 3).backward();
  if (dtype == at::kFloat) REQUIRE(c.totals[1].item<double>() == expected.top1.item<double>());
  REQUIRE(far(c.totals[0], expected.loss, expected.loss_bound) == "");
  REQUIRE(c.totals[2].item<float>() == 0);
  REQUIRE(c.totals[3].equal(c.weights.sum()));
  REQUIRE(far(x.grad(), expected.dx, expected.dx_bound) == "");
  REQUIRE(far(table.gradient, expected.dtable, expected.dtable_bound) == "");
  REQUIRE(x.grad().masked_select(c.weights.eq(0).unsqueeze(1)).eq(0).all().item<bool>());

  const at::Tensor evaluated = at::zeros_like(c.totals), gradient = table.gradient.clone();
  const c10::AutoGradMode off(false);
  REQUIRE(ops::linear_cross_entropy(x, table, c.labels, c.weights, evaluated).equal(evaluated[0]));
  REQUIRE(evaluated.equal(c.totals));
  REQUIRE(table.gradient.equal(gradient));
}

TEST_CASE("logits are capped softly, and gradients go through the caps", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16})));
  CAPTURE(device.str(), c10::toString(dtype));
  constexpr double kCap = 3;
  test::Random random(1, device);
  const at::Tensor x = leaf(random({300, 24}, dtype)), x64 = exact(x);
  Parameter table = random.parameter({50, 24}, dtype);
  const at::Tensor table64 = exact(table.value);
  const LinearLossCase c(random, 300, 50);
  const at::Tensor logits = at::tanh(at::mm(x64, table64.t()) / kCap) * kCap;
  const at::Tensor each = at::cross_entropy_loss(logits, c.labels.cpu(), {}, at::Reduction::None);
  const at::Tensor loss = (each * c.weights.cpu().to(at::kDouble)).sum();
  (loss * 3).backward();
  (ops::linear_cross_entropy(x, table, c.labels, c.weights, c.totals, ops::LogitRows::few, kCap) *
   3)
      .backward();
  const double allowed = 8 * test::unit_roundoff(dtype);
  REQUIRE(test::relative_error(c.totals[0], loss) < allowed);
  REQUIRE(test::relative_error(x.grad(), x64.grad()) < allowed);
  REQUIRE(test::relative_error(table.gradient, table64.grad()) < allowed);
  const at::Tensor evaluated = at::zeros_like(c.totals);
  const c10::AutoGradMode off(false);
  (void)ops::linear_cross_entropy(x, table, c.labels, c.weights, evaluated, ops::LogitRows::few,
                                  kCap);
  REQUIRE(evaluated.equal(c.totals));
}

TEST_CASE("chunks of rows change nothing but the order of sums", "[kernels][cpu]") {
  test::Random random(3);
  const std::int64_t rows = 300, classes = 60'001;  // 240 KB a row: 256 rows at once
  const at::Tensor x = leaf(random({rows, 4}));
  Parameter table = random.parameter({classes, 4}, at::kFloat);
  table.gradient.fill_(std::numeric_limits<float>::quiet_NaN());
  table.gradient_state = GradientState::empty;  // the first chunk overwrites, the others add
  const LinearLossCase c(random, rows, classes);
  const Expected expected = expected_of(x, table, c);
  (ops::linear_cross_entropy(x, table, c.labels, c.weights, c.totals) * 3).backward();
  REQUIRE(far(c.totals[0], expected.loss, expected.loss_bound) == "");
  REQUIRE(far(x.grad(), expected.dx, expected.dx_bound) == "");
  REQUIRE(far(table.gradient, expected.dtable, expected.dtable_bound) == "");
}

TEST_CASE("the head's parts can be frozen", "[kernels][cpu]") {
  test::Random random(4);
  const LinearLossCase c(random, 9, 11);
  Parameter table = random.parameter({11, 6}, at::kFloat);
  const at::Tensor fixed = random({9, 6}), x = leaf(fixed);
  const Expected expected = expected_of(x, table, c);
  const auto loss = [&](const at::Tensor& input) {
    return ops::linear_cross_entropy(input, table, c.labels, c.weights, c.totals) * 3;
  };
  loss(fixed).backward();  // only the table learns
  REQUIRE(far(table.gradient, expected.dtable, expected.dtable_bound) == "");
  table.trainable = false;
  table.gradient = at::Tensor();
  loss(x).backward();
  REQUIRE(far(x.grad(), expected.dx, expected.dx_bound) == "");
  REQUIRE_FALSE(loss(fixed).requires_grad());
}

TEST_CASE("rows of weight 0 change nothing, bit for bit, whatever they are labelled",
          "[kernels][cpu]") {
  test::Random random(5);
  const at::Tensor rows = random({4, 6});
  const Parameter table = random.parameter({7, 6}, at::kFloat);
  const auto run = [&](std::int64_t label) {
    Parameter own = table;
    own.gradient = at::zeros({7, 6});
    const at::Tensor x = leaf(rows), totals = at::zeros({4});
    ops::linear_cross_entropy(x, own, indices({1, label, 5, label}), floats({1, 0, 1, 0}), totals)
        .backward();
    return std::vector<at::Tensor>{totals, x.grad(), own.gradient};
  };
  const auto zeros = run(0), wild = run(-100);
  for (std::size_t i = 0; i < zeros.size(); ++i) REQUIRE(zeros[i].equal(wild[i]));
}

TEST_CASE("among equal logits the lower token counts as the guess", "[kernels][cpu]") {
  Parameter table;
  table.shape = {4, 1};
  table.value = floats({1, 2, 2, 0}).view({4, 1});
  table.trainable = false;
  const at::Tensor totals = at::zeros({4});
  (void)ops::linear_cross_entropy(floats({1, 1, 1}).view({3, 1}), table, indices({1, 2, 3}),
                                  floats({1, 1, 1}), totals);
  REQUIRE(totals[1].item<float>() == 1);
}

TEST_CASE("a label outside the vocabulary makes the loss nan instead of passing",
          "[kernels][cpu]") {
  Parameter table;
  table.shape = {3, 2};
  table.value = at::zeros({3, 2});
  table.trainable = false;
  const at::Tensor totals = at::zeros({4});
  (void)ops::linear_cross_entropy(at::zeros({1, 2}), table, indices({3}), floats({1}), totals);
  REQUIRE(std::isnan(totals[0].item<float>()));
  REQUIRE(totals[1].item<float>() == 0);
}

TEST_CASE("a head of wrong shapes is named", "[kernels][cpu]") {
  Parameter table;
  table.shape = {3, 2};
  table.value = at::zeros({3, 2});
  try {
    (void)ops::linear_cross_entropy(at::zeros({4, 5}), table, indices({3}), floats({1}),
                                    at::zeros({4}));
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(std::string(error.what()).find("x [4, 5], table [3, 2], labels [1] int64") !=
            std::string::npos);
  }
}

}  // namespace
}  // namespace dstrain
