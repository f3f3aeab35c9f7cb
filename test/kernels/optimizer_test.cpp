#include "engine/kernels/optimizer/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <utility>

#include "engine/kernels/optimizer/matrix_update.h"
#include "test/kernels/optimizer_bounds.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using namespace optimizer;

at::Tensor fresh_control(float loss_scale = 1) {
  at::Tensor control = at::zeros({kControlSize});
  control[kLossScale] = loss_scale;
  return control;
}
float get(const at::Tensor& control, ControlIndex index) { return control[index].item<float>(); }

/// One decision on a gradient with this sum of squares.
void finish(const at::Tensor& control, double sum, const FinishOptions& options = {}) {
  finish_gradients(control, at::full({1}, sum, at::kFloat), options);
}

TEST_CASE("AdamW and torch's fused AdamW follow the rule for 20 steps", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t count = GENERATE(1, 1003, 70000);
  CAPTURE(c10::toString(dtype), count);
  test::Random random(1);
  Step ours{
      .master = random({count}),
      .moments = {at::zeros({count}), at::zeros({count})},
      .gradient = {},
      .compute = at::empty({count}, dtype),
      .rule = AdamW{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}};
  std::vector<at::Tensor> master{ours.master.clone()}, average{at::zeros({count})},
      square{at::zeros({count})};
  test::AdamBounds bounds{master[0], average[0], square[0]};
  std::vector<at::Tensor> steps{at::zeros({})};
  const at::Tensor control = fresh_control();
  for (int step = 1; step <= 20; ++step) {
    ours.gradient = random({count});
    std::vector<at::Tensor> gradient{ours.gradient};
    finish(control, 1, {.beta2 = 0.95});
    update(ours, control);
    steps[0].fill_(step);
    at::_fused_adamw_(master, gradient, average, square, {}, steps, 1e-2, 0.9, 0.95, 0.1, 1e-8,
                      false, false);
    bounds.step(ours.gradient, step, 1e-2, 0.9, 0.95, 1e-8, 0.1);
  }
  REQUIRE(get(control, kAppliedSteps) == 20);
  for (const auto& got : {ours.master, master[0]}) REQUIRE(test::far(got, bounds.master) == "");
  for (const auto& got : {ours.moments[0], average[0]})
    REQUIRE(test::far(got, bounds.average) == "");
  for (const auto& got : {ours.moments[1], square[0]}) REQUIRE(test::far(got, bounds.square) == "");
  REQUIRE(ours.compute.equal(ours.master.to(dtype)));
}

TEST_CASE("SGD follows torch.optim.SGD's rule for 20 steps", "[kernels]") {
  test::Random random(2);
  const std::int64_t count = 40003;
  Step ours{.master = random({count}),
            .moments = {at::zeros({count})},
            .gradient = {},
            .compute = {},
            .rule = Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}};
  at::Tensor master = ours.master.to(at::kDouble), buffer;
  test::SgdBounds bounds{ours.master, ours.moments[0]};
  const at::Tensor control = fresh_control();
  for (int step = 1; step <= 20; ++step) {
    ours.gradient = random({count});
    finish(control, 1);
    update(ours, control);
    const at::Tensor g = ours.gradient.to(at::kDouble) + 0.01 * master;
    buffer = buffer.defined() ? 0.9 * buffer + g : g;
    master = master - 0.1 * buffer;
    bounds.step(ours.gradient, 0.1, 0.9, 0.01);
  }
  REQUIRE(test::far(ours.master, master, bounds.master) == "");
  REQUIRE(test::far(ours.moments[0], buffer, bounds.momentum) == "");
}

TEST_CASE("SGD with Nesterov's momentum follows torch.optim.SGD's rule for 20 steps", "[kernels]") {
  test::Random random(2);
  const std::int64_t count = 40003;
  Step ours{.master = random({count}),
            .moments = {at::zeros({count})},
            .gradient = {},
            .compute = {},
            .rule = Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}};
  at::Tensor master = ours.master.to(at::kDouble), buffer = at::zeros({count}, at::kDouble);
  test::SgdBounds bounds{ours.master, ours.moments[0]};
  const at::Tensor control = fresh_control();
  for (int step = 1; step <= 20; ++step) {
    ours.gradient = random({count});
    finish(control, 1);
    update(ours, control);
    const at::Tensor g = ours.gradient.to(at::kDouble) + 0.01 * master;
    buffer = 0.9 * buffer + g;
    master = master - 0.1 * (g + 0.9 * buffer);
    bounds.step(ours.gradient, 0.1, 0.9, 0.01, /*nesterov=*/true);
  }
  REQUIRE(test::far(ours.master, master, bounds.master) == "");
  REQUIRE(test::far(ours.moments[0], buffer, bounds.momentum) == "");
}

TEST_CASE("both forms of RMSprop follow their rule for 20 steps", "[kernels]") {
  test::Random random(3);
  const bool tensorflow = GENERATE(false, true);
  const std::int64_t count = 40003;
  const double lr = 1e-2, alpha = 0.9, momentum = 0.8, eps = 1e-3, decay = 0.05;
  const double first = tensorflow ? RmspropTensorflow::kFirstSquare : 0;
  Step ours{.master = random({count}),
            .moments = {at::full({count}, first, at::kFloat), at::zeros({count})},
            .gradient = {},
            .compute = at::empty({count}, at::kBFloat16),
            .rule = tensorflow ? Rule(RmspropTensorflow{.lr = lr,
                                                        .alpha = alpha,
                                                        .momentum = momentum,
                                                        .eps = eps,
                                                        .weight_decay = decay})
                               : Rule(Rmsprop{.lr = lr,
                                              .alpha = alpha,
                                              .momentum = momentum,
                                              .eps = eps,
                                              .weight_decay = decay})};
  at::Tensor master = ours.master.to(at::kDouble), buffer = at::zeros({count}, at::kDouble),
             square = at::full({count}, first, at::kDouble);
  test::RmspropBounds bounds{ours.master, ours.moments[0], ours.moments[1], tensorflow};
  const at::Tensor control = fresh_control();
  for (int step = 1; step <= 20; ++step) {
    ours.gradient = random({count});
    finish(control, 1);
    update(ours, control);
    const at::Tensor g = ours.gradient.to(at::kDouble) + decay * master;
    square = alpha * square + (1 - alpha) * g * g;
    if (tensorflow) {
      buffer = momentum * buffer + lr * g / (square + eps).sqrt();
      master = master - buffer;
    } else {
      buffer = momentum * buffer + g / (square.sqrt() + eps);
      master = master - lr * buffer;
    }
    bounds.step(ours.gradient, lr, alpha, momentum, eps, decay);
  }
  REQUIRE(test::far(ours.master, master, bounds.master) == "");
  REQUIRE(test::far(ours.moments[0], square, bounds.square) == "");
  REQUIRE(test::far(ours.moments[1], buffer, bounds.momentum) == "");
  REQUIRE(ours.compute.equal(ours.master.to(at::kBFloat16)));
}

TEST_CASE("Lion follows the paper's algorithm for 20 steps", "[kernels]") {
  test::Random random(7);
  const std::int64_t count = 40003;
  Step ours{.master = random({count}),
            .moments = {at::zeros({count})},
            .gradient = {},
            .compute = at::empty({count}, at::kBFloat16),
            .rule = Lion{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1}};
  at::Tensor master = ours.master.to(at::kDouble), average = at::zeros({count}, at::kDouble);
  test::LionBounds bounds{ours.master, ours.moments[0]};
  const at::Tensor control = fresh_control();
  for (int step = 1; step <= 20; ++step) {
    ours.gradient = random({count});
    ours.gradient.narrow(0, 0, 10).zero_();  // the sign of zero is zero
    finish(control, 1);
    update(ours, control);
    const at::Tensor g = ours.gradient.to(at::kDouble);
    master = master - 1e-2 * ((0.9 * average + 0.1 * g).sign() + 0.1 * master);
    average = 0.99 * average + 0.01 * g;
    bounds.step(ours.gradient, 1e-2, 0.9, 0.99, 0.1);
  }
  REQUIRE(test::far(ours.master, master, bounds.master) == "");
  REQUIRE(test::far(ours.moments[0], average, bounds.average) == "");
  REQUIRE(ours.compute.equal(ours.master.to(at::kBFloat16)));
}

TEST_CASE("Muon's momentum and step follow torch.optim.Muon for 20 steps", "[kernels]") {
  test::Random random(8);
  const bool nesterov = GENERATE(false, true);
  const std::int64_t count = 40003;
  Step momentum{.master = at::zeros({count}),
                .moments = {},
                .gradient = {},
                .compute = at::empty({count}, at::kBFloat16),
                .rule = MuonMomentum{.momentum = 0.95, .nesterov = nesterov}};
  Step step{.master = random({count}),
            .moments = {},
            .gradient = {},
            .compute = at::empty({count}, at::kHalf),
            .rule = MuonStep{.step = 0.02, .shrink = 1e-3}};
  at::Tensor average = at::zeros({count}, at::kDouble), master = step.master.to(at::kDouble);
  const at::Tensor control = fresh_control(4);
  for (int i = 0; i < 20; ++i) {
    momentum.gradient = random({count});
    finish(control, 1);
    update(momentum, control);
    const at::Tensor g = momentum.gradient.to(at::kDouble) / 4;
    average = 0.95 * average + 0.05 * g;
    const at::Tensor direction = nesterov ? 0.95 * average + 0.05 * g : average;
    const at::Tensor apart = (momentum.compute.to(at::kDouble) - direction).abs();
    REQUIRE(apart.le(0x1p-8 * direction.abs() + 1e-6).all().item<bool>());
    step.gradient = momentum.compute.to(at::kFloat);
    update(step, control);  // its direction is not scaled as a gradient
    master = master * (1 - 1e-3) - 0.02 * step.gradient.to(at::kDouble);
  }
  REQUIRE((momentum.master.to(at::kDouble) - average).abs().max().item<double>() < 1e-6);
  REQUIRE((step.master.to(at::kDouble) - master).abs().max().item<double>() < 1e-5);
  REQUIRE(step.compute.equal(step.master.to(at::kHalf)));
}

TEST_CASE("an average of weights follows them, whatever their gradients are scaled by",
          "[kernels]") {
  test::Random random(10);
  const std::int64_t count = 40003;
  Step step{.master = random({count}),
            .moments = {},
            .gradient = {},
            .compute = {},
            .rule = Average{.share = 0.01}};
  at::Tensor average = step.master.to(at::kDouble);
  const at::Tensor control = fresh_control(4);
  for (int i = 0; i < 20; ++i) {
    step.gradient = random({count});
    finish(control, 1);
    update(step, control);
    average = 0.99 * average + 0.01 * step.gradient.to(at::kDouble);
  }
  REQUIRE((step.master.to(at::kDouble) - average).abs().max().item<double>() < 1e-6);
}

TEST_CASE("an orthogonalised matrix keeps its singular vectors, with values near one",
          "[kernels]") {
  test::Random random(9);
  const auto [rows, columns] =
      GENERATE(std::pair(64, 64), std::pair(40, 96), std::pair(96, 40), std::pair(1, 30));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(rows, columns, c10::toString(dtype));
  const at::Tensor x = random({rows, columns}, dtype);
  const at::Tensor y = orthogonalize(x, 5).to(at::kDouble);
  REQUIRE(y.sizes() == x.sizes());
  const auto [u, s, v] = at::linalg_svd(x.to(at::kDouble), /*full_matrices=*/false);
  const at::Tensor inside = u.t().matmul(y).matmul(v.t());
  // Small singular values are not there yet after five iterations.
  const at::Tensor values = inside.diagonal().masked_select(s.gt(0.1 * s.max()));
  REQUIRE(values.min().item<double>() > 0.6);
  REQUIRE(values.max().item<double>() < 1.3);
  const at::Tensor beside = inside - inside.diagonal().diag();
  REQUIRE(beside.abs().max().item<double>() < (dtype == at::kFloat ? 1e-4 : 0.1));
  REQUIRE(orthogonalize(at::zeros({4, 6}, dtype), 5).eq(0).all().item<bool>());
}

/// The rules with their defaults, by name.
Rule rule_of(const std::string& name, double lr, double weight_decay) {
  if (name == "adamw") return AdamW{.lr = lr, .weight_decay = weight_decay};
  if (name == "lion") return Lion{.lr = lr, .weight_decay = weight_decay};
  if (name == "average") return Average{.share = lr};
  if (name == "rmsprop") return Rmsprop{.lr = lr, .weight_decay = weight_decay};
  if (name == "rmsprop of TensorFlow") {
    return RmspropTensorflow{.lr = lr, .weight_decay = weight_decay};
  }
  return Sgd{.lr = lr, .weight_decay = weight_decay};
}

TEST_CASE("a skipped step leaves every state bit as it was", "[kernels]") {
  test::Random random(3);
  const double bad =
      GENERATE(std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN());
  const std::string name =
      GENERATE("adamw", "sgd", "lion", "rmsprop", "rmsprop of TensorFlow", "average");
  CAPTURE(bad, name);
  Step step{.master = random({100}),
            .moments = {},
            .gradient = random({100}),
            .compute = random({100}, at::kBFloat16),
            .rule = rule_of(name, 1, 0.1)};
  for (int m = 0; m < num_moments(step.rule); ++m) step.moments.push_back(random({100}).abs());
  std::vector<at::Tensor> states = step.moments;
  states.insert(states.end(), {step.master, step.compute});
  std::vector<at::Tensor> before;
  for (const auto& state : states) before.push_back(state.clone());
  const at::Tensor control = fresh_control();
  finish(control, bad);
  update(step, control);
  for (std::size_t i = 0; i < states.size(); ++i) REQUIRE(states[i].equal(before[i]));
  REQUIRE(get(control, kSkip) == 1);
  REQUIRE(get(control, kSkippedSteps) == 1);
  REQUIRE(get(control, kAppliedSteps) == 0);
  finish(control, 1);
  update(step, control);
  REQUIRE(get(control, kSkip) == 0);
  for (std::size_t i = 0; i < states.size(); ++i) REQUIRE_FALSE(states[i].equal(before[i]));
}

TEST_CASE("a step wants as many moments as its rule has", "[kernels]") {
  Step step{.master = at::zeros({4}),
            .moments = {at::zeros({4})},
            .gradient = at::zeros({4}),
            .compute = {},
            .rule = AdamW{}};
  REQUIRE_THROWS_WITH(update(step, fresh_control()), Catch::Contains("another number of moments"));
}

TEST_CASE("clipping scales gradients above the limit only", "[kernels]") {
  const at::Tensor control = fresh_control(4);
  finish(control, 400, {.clip_norm = 2});  // norm 20 / 4 = 5
  REQUIRE(get(control, kGradientNorm) == Approx(5));
  REQUIRE(get(control, kGradientFactor) == Approx(2.0 / 5 / 4));
  finish(control, 16, {.clip_norm = 2});  // norm 1
  REQUIRE(get(control, kGradientFactor) == Approx(0.25));
  finish(control, 400);
  REQUIRE(get(control, kGradientFactor) == Approx(0.25));
}

TEST_CASE("the loss scale halves at a non-finite step and doubles after enough finite ones",
          "[kernels]") {
  const FinishOptions dynamic{.loss_scaling = {.dynamic = true, .growth_interval = 3}};
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor control = fresh_control(1024);
  finish(control, 1, dynamic);
  finish(control, 1, dynamic);
  finish(control, inf, dynamic);
  REQUIRE(get(control, kLossScale) == 512);
  REQUIRE(get(control, kGoodSteps) == 0);
  for (int i = 0; i < 2; ++i) finish(control, 1, dynamic);
  REQUIRE(get(control, kLossScale) == 512);
  finish(control, 1, dynamic);
  REQUIRE(get(control, kGradientFactor) ==
          Approx(1.0 / 512));  // of this step's scale, not the next one's
  REQUIRE(get(control, kLossScale) == 1024);
  for (int i = 0; i < 30; ++i) finish(control, inf, dynamic);
  REQUIRE(get(control, kLossScale) == kMinLossScale);
  REQUIRE(get(control, kSkippedSteps) == 31);

  const at::Tensor fixed = fresh_control(8);
  for (int i = 0; i < 5; ++i)
    finish(fixed, i == 0 ? inf : 1, {.loss_scaling = {.growth_interval = 3}});
  REQUIRE(get(fixed, kLossScale) == 8);
}

/// The scale and the steps that hysteresis has taken up after each of `steps`: '.' is finite.
std::vector<std::pair<float, float>> scales(const std::string& steps, float scale,
                                            const LossScaling& scaling) {
  const at::Tensor control = fresh_control(scale);
  std::vector<std::pair<float, float>> after;
  for (const char step : steps) {
    finish(control, step == '.' ? 1 : std::numeric_limits<double>::infinity(),
           {.loss_scaling = scaling});
    after.emplace_back(get(control, kLossScale), get(control, kToleratedSteps));
  }
  return after;
}

TEST_CASE("hysteresis takes up non-finite steps until the scale grows, or until a finite one",
          "[kernels]") {
  using Pairs = std::vector<std::pair<float, float>>;
  LossScaling scaling{.dynamic = true, .growth_interval = 3, .hysteresis = 3};
  // Two are taken up, also apart; the third and each one after it halve, until growth sets it back.
  CHECK(scales("x.xxx...x", 64, scaling) ==
        Pairs{{64, 1}, {64, 1}, {64, 2}, {32, 2}, {16, 2}, {16, 2}, {16, 2}, {32, 0}, {32, 1}});
  scaling.consecutive = true;
  CHECK(scales("x.xxxx.x", 64, scaling) ==
        Pairs{{64, 1}, {64, 0}, {64, 1}, {64, 2}, {32, 2}, {16, 2}, {16, 0}, {16, 1}});
  scaling.dynamic = false;
  CHECK(scales("xxxx", 64, scaling) == Pairs{{64, 0}, {64, 0}, {64, 0}, {64, 0}});
}

TEST_CASE("the loss scale stays at its minimum", "[kernels]") {
  const LossScaling scaling{.dynamic = true, .growth_interval = 2, .minimum = 24};
  const std::vector<std::pair<float, float>> expected = {
      {32, 0}, {24, 0}, {24, 0}, {24, 0}, {48, 0}};
  CHECK(scales("xxx..", 64, scaling) == expected);
  CHECK(scales("x", 8, scaling).front().first == 8);  // below it from the start
}

TEST_CASE("add_squares adds the scaled sum of squares and repeats bit for bit", "[kernels]") {
  test::Random random(4);
  const std::int64_t count = GENERATE(1, 17, 32768, 100001);
  const at::Tensor gradient = random({count}), sum = at::full({1}, 2, at::kFloat),
                   again = at::full({1}, 2, at::kFloat);
  add_squares(gradient, 0.5, sum);
  add_squares(gradient, 0.5, again);
  // Squares are summed in double: roundings to fp32 are of the sum, and of its addition to 2.
  const at::Tensor two = at::full({1}, 2, at::kDouble);
  const test::Bounded added(0.5 * gradient.to(at::kDouble).pow(2).sum().view({1}));
  REQUIRE(test::far(sum, rounded(added) + two) == "");
  REQUIRE(sum.equal(again));
}

}  // namespace
}  // namespace dstrain
