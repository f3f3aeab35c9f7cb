#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
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
      : labels((random({rows}).abs() * 1000).to(at::kLong).remainder(classes)),
        weights(random({rows}).gt(-0.5).to(at::kFloat)) {
    weights[0] = 2;
  }
  at::Tensor labels, weights, totals = at::zeros({4});
};

struct Expected {
  at::Tensor loss, dx, dtable, top1;
  Bounded loss_bound, dx_bound, dtable_bound;
};

/// In double, by ATen, with the scalar's gradient 3.
Expected expected_of(const at::Tensor& x, const Parameter& table, const LinearLossCase& c) {
  const at::Tensor x64 = exact(x), table64 = exact(table.value), logits = at::mm(x64, table64.t());
  const at::Tensor each = at::cross_entropy_loss(logits, c.labels, {}, at::Reduction::None);
  const at::Tensor loss = (each * c.weights.to(at::kDouble)).sum();
  (loss * 3).backward();
  const at::Tensor hit = logits.argmax(1).eq(c.labels);
  const auto dtype = x.scalar_type();
  const test::LossBounds bounds =
      test::cross_entropy(test::times(x, table.value, dtype), c.labels, c.weights, 0, 3);
  const Bounded dlogits = rounded(bounds.dlogits, dtype);
  return {.loss = loss.detach(),
          .dx = x64.grad(),
          .dtable = table64.grad(),
          .top1 = (hit * c.weights).sum(),
          .loss_bound = bounds.loss,
          .dx_bound = test::input_gradient(dlogits, table.value, dtype),
          .dtable_bound = test::weight_gradient(dlogits, x)};
}

TEST_CASE("linear_cross_entropy in training equals that of ATen with its gradients", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const std::int64_t classes = GENERATE(5, 16, 1003);
  CAPTURE(c10::toString(dtype), classes);
  test::Random random(1);
  const std::int64_t rows = 37;
  const at::Tensor x = leaf(random({rows, 24}, dtype));
  Parameter table = random.parameter({classes, 24}, dtype);
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
}

TEST_CASE("linear_cross_entropy in evaluation returns the loss and counts it", "[kernels]") {
  test::Random random(2);
  const at::Tensor x = random({20, 8});
  Parameter table = random.parameter({50, 8}, at::kFloat);
  const LinearLossCase c(random, 20, 50);
  const Expected expected = expected_of(x, table, c);
  const c10::AutoGradMode off(false);
  const at::Tensor loss = ops::linear_cross_entropy(x, table, c.labels, c.weights, c.totals);
  REQUIRE(far(loss, expected.loss, expected.loss_bound) == "");
  REQUIRE(c.totals[0].equal(loss));
  REQUIRE(c.totals[1].item<double>() == expected.top1.item<double>());
  REQUIRE(c.totals[3].equal(c.weights.sum()));
  REQUIRE(table.gradient.eq(0).all().item<bool>());
}

TEST_CASE("chunks of rows change nothing but the order of sums", "[kernels]") {
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

TEST_CASE("the head's parts can be frozen", "[kernels]") {
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

TEST_CASE("rows of weight 0 change nothing, bit for bit, whatever they are labelled", "[kernels]") {
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

TEST_CASE("among equal logits the lower token counts as the guess", "[kernels]") {
  Parameter table;
  table.shape = {4, 1};
  table.value = floats({1, 2, 2, 0}).view({4, 1});
  table.trainable = false;
  const at::Tensor totals = at::zeros({4});
  (void)ops::linear_cross_entropy(floats({1, 1, 1}).view({3, 1}), table, indices({1, 2, 3}),
                                  floats({1, 1, 1}), totals);
  REQUIRE(totals[1].item<float>() == 1);
}

TEST_CASE("a label outside the vocabulary makes the loss nan instead of passing", "[kernels]") {
  Parameter table;
  table.shape = {3, 2};
  table.value = at::zeros({3, 2});
  table.trainable = false;
  const at::Tensor totals = at::zeros({4});
  (void)ops::linear_cross_entropy(at::zeros({1, 2}), table, indices({3}), floats({1}), totals);
  REQUIRE(std::isnan(totals[0].item<float>()));
  REQUIRE(totals[1].item<float>() == 0);
}

TEST_CASE("a head of wrong shapes is named", "[kernels]") {
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
