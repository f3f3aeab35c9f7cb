#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <cmath>
#include <limits>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/kernels/optimizer/optimizer_update.h"
#include "engine/kernels/optimizer/stochastic_rounding.h"
#include "test/kernels/devices.h"
#include "test/kernels/optimizer_control.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using namespace optimizer;
using kernels::bf16_value;
using kernels::round_stochastically;
using test::control_at;

at::Tensor filled(std::int64_t count, double value, at::ScalarType dtype = at::kBFloat16,
                  at::Device device = at::kCPU) {
  return at::full({count}, value, at::TensorOptions(device).dtype(dtype));
}

/// Parameters with moments of zero.
Step states_of(const Rule& rule, const at::Tensor& parameters, const at::Tensor& gradient) {
  Step step{.master = parameters.clone(),
            .moments = {},
            .gradient = gradient,
            .compute = {},
            .rule = rule,
            .seed = 7};
  for (int m = 0; m < num_moments(rule); ++m) step.moments.push_back(at::zeros_like(parameters));
  return step;
}

/// Six standard deviations of the mean over `count` parameters after so many stochastic roundings
/// to multiples of `step`, each of which has the variance p (1 - p) step^2, where it goes the other
/// way with probability p.
double six_sigma(double step, int roundings, std::int64_t count, double p = 0.5) {
  return 6 * step *
         std::sqrt(p * (1 - p) * static_cast<double>(roundings) / static_cast<double>(count));
}

double mean_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).mean().item<double>(); }

TEST_CASE("a number is rounded up as often as the part cut off is large", "[kernels][cpu]") {
  const float x = GENERATE(1.0f, 1.001f, -3.14159f, 1e-39f, 6.55e4f, 0.0f, 1.00390625f);
  const auto bits = std::bit_cast<std::uint32_t>(x);
  std::uint32_t ups = 0;
  for (std::uint32_t random = 0; random < 65536; ++random) {
    const std::uint16_t rounded = round_stochastically(x, random);
    REQUIRE((rounded == bits >> 16 || rounded == (bits >> 16) + 1));
    ups += rounded != bits >> 16;
  }
  REQUIRE(ups == (bits & 0xffffu));
}

TEST_CASE("stochastic rounding keeps infinities and nans", "[kernels][cpu]") {
  const std::uint32_t random = GENERATE(0u, 1u, 65535u);
  const float inf = std::numeric_limits<float>::infinity();
  REQUIRE(bf16_value(round_stochastically(inf, random)) == inf);
  REQUIRE(bf16_value(round_stochastically(-inf, random)) == -inf);
  for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7fc00000u})
    REQUIRE(std::isnan(bf16_value(round_stochastically(std::bit_cast<float>(bits), random))));
}

TEST_CASE("bf16 parameters follow steps far below their last bit", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const std::int64_t count = device.is_cuda() ? 1'000'000 : 200'000;
  const double lr = 1e-4, last_bit = 0x1p-8;  // below 1
  const Rule rule = GENERATE_COPY(Rule(AdamW{.lr = lr}), Rule(Sgd{.lr = lr, .momentum = 0}),
                                  Rule(Lion{.lr = lr}));
  const double gradient = std::holds_alternative<Sgd>(rule) ? 1 : 0.5;
  const Step states = states_of(rule, filled(count, 1, at::kBFloat16, device),
                                filled(count, gradient, at::kFloat, device));
  CAPTURE(device.str(), rule.index());
  for (int step = 1; step <= 20; ++step) update(states, control_at(step).to(device));
  REQUIRE(std::abs(mean_of(states.master) - (1 - 20 * lr)) <
          six_sigma(last_bit, 20, count, lr / last_bit));
}

TEST_CASE("bf16 moments decay although a thousandth is below their last bit", "[kernels][cpu]") {
  const std::int64_t count = 50'000;
  const AdamW rule{.lr = 1e-2, .beta1 = 0.999, .beta2 = 0.999};
  Step adam = states_of(rule, filled(count, 1), filled(count, 0, at::kFloat));
  for (const at::Tensor& moment : adam.moments) moment.fill_(0.75);
  for (int step = 1; step <= 200; ++step) update(adam, control_at(step));
  const double expected = 0.75 * std::pow(0.999, 200), allowed = six_sigma(0x1p-8, 200, count);
  for (const at::Tensor& moment : adam.moments)
    REQUIRE(std::abs(mean_of(moment) - expected) < allowed);
}

TEST_CASE("bf16 AdamW stays near fp32 AdamW for 20 steps", "[kernels][cpu]") {
  test::Random random(1);
  const std::int64_t count = 5001;
  const at::Tensor start = random({count}, at::kBFloat16);
  const AdamW rule{.lr = 1e-2, .weight_decay = 0.1};
  Step narrow = states_of(rule, start, {}), wide = states_of(rule, start.to(at::kFloat), {});
  narrow.compute = narrow.master;  // the same tensor is as good as none
  for (int step = 1; step <= 20; ++step) {
    narrow.gradient = wide.gradient = random({count});
    update(narrow, control_at(step));
    update(wide, control_at(step));
  }
  const at::Tensor difference = narrow.master.to(at::kFloat) - wide.master;
  // bf16's last bit is 2^-7 of a parameter at most; the moments' roundings move it by 2^-7 of a
  // step, a hundred times less.
  const at::Tensor last_bit = wide.master.abs() * 0x1p-7;
  const double usual = last_bit.pow(2).mean().sqrt().item<double>();
  REQUIRE(difference.abs().max().item<double>() < six_sigma(last_bit.max().item<double>(), 20, 1));
  REQUIRE(difference.pow(2).mean().sqrt().item<double>() < six_sigma(usual, 20, 1) / 6 * 1.1);
  REQUIRE(std::abs(mean_of(difference)) < six_sigma(usual, 20, count));
}

TEST_CASE("results do not depend on how parameters are divided into shards", "[kernels][cpu]") {
  test::Random random(2);
  const std::int64_t count = 40'000, cut = GENERATE(8, 1001, 33'000);
  const at::Tensor start = random({count}, at::kBFloat16), gradient = random({count});
  const Rule rule = GENERATE(Rule(AdamW{.lr = 1e-2}), Rule(Sgd{.lr = 1e-2}), Rule(Lion{.lr = 1e-2}),
                             Rule(Rmsprop{.lr = 1e-2}), Rule(RmspropTensorflow{.lr = 1e-2}));
  const auto run = [&](std::int64_t first, std::int64_t size, std::uint64_t seed, int step) {
    Step part = states_of(rule, start.narrow(0, first, size), gradient.narrow(0, first, size));
    part.seed = seed;
    part.first_element = first;
    update(part, control_at(step));
    std::vector<at::Tensor> states = part.moments;
    states.push_back(part.master);
    return states;
  };
  const auto whole = run(0, count, 7, 3), left = run(0, cut, 7, 3),
             right = run(cut, count - cut, 7, 3);
  const auto other_seed = run(0, count, 8, 3), other_step = run(0, count, 7, 4);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CAPTURE(i);
    REQUIRE(whole[i].equal(at::cat({left[i], right[i]})));
    REQUIRE_FALSE(whole[i].equal(other_seed[i]));
    REQUIRE_FALSE(whole[i].equal(other_step[i]));
  }
}

TEST_CASE("a skipped step leaves bf16 states as they were", "[kernels][cpu]") {
  test::Random random(3);
  const at::Tensor start = random({100}, at::kBFloat16);
  for (const Rule& rule : {Rule(AdamW{.lr = 1}), Rule(Sgd{.lr = 1}), Rule(Lion{.lr = 1})}) {
    Step step = states_of(rule, start, random({100}));
    for (const at::Tensor& moment : step.moments) moment.copy_(start);
    update(step, control_at(1, 1, 1));
    REQUIRE(step.master.equal(start));
    for (const at::Tensor& moment : step.moments) REQUIRE(moment.equal(start));
  }
}

TEST_CASE("bf16 parameters want bf16 moments and no compute copy beside them", "[kernels][cpu]") {
  test::Random random(4);
  const auto message = [](const Step& adam) {
    try {
      update(adam, control_at(1));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Step adam = states_of(AdamW{}, random({10}, at::kBFloat16), random({10}));
  adam.moments[1] = at::zeros({10});
  REQUIRE(message(adam).find("a moment is not flat dense BFloat16") != std::string::npos);
  adam = states_of(AdamW{}, random({10}, at::kBFloat16), random({10}));
  adam.compute = adam.master.clone();
  REQUIRE(message(adam).find("no compute copy") != std::string::npos);
}

TEST_CASE("the bf16 optimizer references agree with the CPU's loops", "[kernels][reference][cpu]") {
  test::Random random(5);
  const std::int64_t count = 10'001, first = 5;
  const at::Tensor control = control_at(3);
  const Rule rule =
      GENERATE(Rule(AdamW{.lr = 1e-2}), Rule(Sgd{.lr = 0.1, .weight_decay = 0.1}),
               Rule(Lion{.lr = 1e-2, .weight_decay = 0.1}), Rule(Sgd{.lr = 0.1, .nesterov = true}),
               Rule(Rmsprop{.lr = 1e-2}), Rule(RmspropTensorflow{.lr = 1e-2}),
               Rule(MuonStep{.step = 1e-2, .shrink = 1e-3}), Rule(MuonMomentum{}));
  CAPTURE(rule.index());
  Step step = states_of(rule, random({count}, at::kBFloat16), random({count}));
  for (const at::Tensor& moment : step.moments)
    moment.copy_(random({count}, at::kBFloat16).abs());  // the second one of Adam is a square
  step.first_element = first;
  std::vector<at::Tensor> expected{step.master.clone()};
  for (const at::Tensor& moment : step.moments) expected.push_back(moment.clone());
  const at::Tensor copy = at::zeros({count}, at::kBFloat16), expected_copy = copy.clone();
  void* reference_copy = nullptr;
  if (is_direction(rule)) {
    step.compute = copy;
    reference_copy = expected_copy.mutable_data_ptr();
  }
  update(step, control);
  kernels::OptimizerUpdate args{.states = kernels::DType::bf16,
                                .parameters = expected[0].mutable_data_ptr(),
                                .moments = {},
                                .gradient = step.gradient.const_data_ptr<float>(),
                                .compute = reference_copy,
                                .compute_type = kernels::DType::bf16,
                                .control = control.const_data_ptr<float>(),
                                .count = count,
                                .rule = rule,
                                .seed = step.seed,
                                .first_element = first};
  for (std::size_t m = 0; m < step.moments.size(); ++m)
    args.moments[m] = expected[1 + m].mutable_data_ptr();
  kernels::reference::update(args);
  // fp32 and double fall on two sides of a random threshold where it lies between them: 16
  // roundings apart at most, in 2^16 steps of fp32 from one bf16 to the next. Then they differ by
  // one step.
  const auto differing = [](const at::Tensor& a, const at::Tensor& b) -> std::string {
    if (mean_of(a.ne(b)) > 4 * 16 * 0x1p-16) return "too many differ";
    const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
    const bool near = (x - y).abs().le(at::maximum(x.abs(), y.abs()) * 0x1p-7).all().item<bool>();
    return near ? "" : "differ by more than a step";
  };
  REQUIRE(differing(step.master, expected[0]) == "");
  REQUIRE(differing(copy, expected_copy) == "");
  REQUIRE(copy.any().item<bool>() == is_direction(rule));
  for (std::size_t m = 0; m < step.moments.size(); ++m)
    REQUIRE(differing(step.moments[m], expected[1 + m]) == "");
}

}  // namespace
}  // namespace dstrain
