#include <algorithm>
#include <cmath>

#include "engine/kernels/host_view.h"
#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/stochastic_rounding.h"
#include "test/kernels/reference/reference.h"

/// The optimizer's kernels as their definitions read; arithmetic in double, states in fp32.
namespace dstrain::kernels::reference {

using namespace dstrain::optimizer;

void add_squares(const AddSquares& a) {
  double sum = 0;
  const View x(a.x, a.type);
  for (std::int64_t i = 0; i < a.count; ++i) sum += std::pow(x.at(i), 2);
  add_to(*a.sum, static_cast<double>(a.factor) * sum);
}

namespace {

/// What a rule reads beside the states of its element. `define` returns what goes to the copy.
struct Given {
  double gradient;  ///< times control[kGradientFactor]
  double raw;       ///< without it
  double t;         ///< updates applied, this one included
};

double define(const AdamW& rule, const Given& given, double& parameter, double* moments) {
  const double g = given.gradient;
  const double average = moments[0] = rule.beta1 * moments[0] + (1 - rule.beta1) * g;
  const double square = moments[1] = rule.beta2 * moments[1] + (1 - rule.beta2) * g * g;
  const double correction1 = 1 - std::pow(rule.beta1, given.t);
  const double correction2 = 1 - std::pow(rule.beta2, given.t);
  parameter *= 1 - rule.lr * rule.weight_decay;
  parameter -= rule.lr * (average / correction1) / (std::sqrt(square / correction2) + rule.eps);
  return parameter;
}

double define(const Sgd& rule, const Given& given, double& parameter, double* moments) {
  const double decayed = given.gradient + rule.weight_decay * parameter;
  moments[0] = rule.momentum * moments[0] + decayed;
  parameter -= rule.lr * (rule.nesterov ? decayed + rule.momentum * moments[0] : moments[0]);
  return parameter;
}

double define(const Rmsprop& rule, const Given& given, double& parameter, double* moments) {
  const double decayed = given.gradient + rule.weight_decay * parameter;
  moments[0] = rule.alpha * moments[0] + (1 - rule.alpha) * decayed * decayed;
  moments[1] = rule.momentum * moments[1] + decayed / (std::sqrt(moments[0]) + rule.eps);
  parameter -= rule.lr * moments[1];
  return parameter;
}

double define(const RmspropTensorflow& rule, const Given& given, double& parameter,
              double* moments) {
  const double decayed = given.gradient + rule.weight_decay * parameter;
  moments[0] = rule.alpha * moments[0] + (1 - rule.alpha) * decayed * decayed;
  moments[1] = rule.momentum * moments[1] + rule.lr * decayed / std::sqrt(moments[0] + rule.eps);
  parameter -= moments[1];
  return parameter;
}

double define(const Lion& rule, const Given& given, double& parameter, double* moments) {
  const double average = rule.beta1 * moments[0] + (1 - rule.beta1) * given.gradient;
  const double sign = average > 0 ? 1 : average < 0 ? -1 : 0;
  parameter -= rule.lr * (sign + rule.weight_decay * parameter);
  moments[0] = rule.beta2 * moments[0] + (1 - rule.beta2) * given.gradient;
  return parameter;
}

double define(const MuonMomentum& rule, const Given& given, double& buffer, double*) {
  buffer = rule.momentum * buffer + (1 - rule.momentum) * given.gradient;
  return rule.nesterov ? rule.momentum * buffer + (1 - rule.momentum) * given.gradient : buffer;
}

double define(const MuonStep& rule, const Given& given, double& parameter, double*) {
  parameter = parameter * (1 - rule.shrink) - rule.step * given.raw;
  return parameter;
}

double define(const Average& rule, const Given& given, double& average, double*) {
  average = (1 - rule.share) * average + rule.share * given.raw;
  return average;
}

/// Element i of a state, in fp32 or in bf16 with stochastic rounding.
class State {
 public:
  State(const OptimizerUpdate& args, void* data, RoundedState which)
      : args_(args), data_(data), which_(which) {}

  [[nodiscard]] double at(std::int64_t i) const { return View(data_, args_.states).at(i); }
  void set(std::int64_t i, double value) const {
    if (args_.states == DType::f32) return View(data_, DType::f32).set(i, value);
    const std::int64_t element = args_.first_element + i;
    const auto bits = RoundingBits::at(random_key(args_.seed, RandomStream::rounding),
                                       static_cast<std::uint64_t>(args_.control[kAppliedSteps]),
                                       element / RoundingBits::kTogether, which_);
    static_cast<std::uint16_t*>(data_)[i] = round_stochastically(
        static_cast<float>(value), bits.of(static_cast<int>(element % RoundingBits::kTogether)));
  }

 private:
  const OptimizerUpdate& args_;
  void* data_;
  RoundedState which_;
};

}  // namespace

void update(const OptimizerUpdate& a) {
  if (a.control[kSkip] != 0) return;
  const View compute(a.compute, a.compute_type), gradient(a.gradient, a.gradient_type);
  const State parameters(a, a.parameters, RoundedState::parameter);
  const int count = num_moments(a.rule);
  for (std::int64_t i = 0; i < a.count; ++i) {
    const double raw = gradient.at(i);
    const Given given{.gradient = raw * static_cast<double>(a.control[kGradientFactor]),
                      .raw = raw,
                      .t = static_cast<double>(a.control[kAppliedSteps])};
    double parameter = parameters.at(i), moments[OptimizerUpdate::kMaxMoments] = {};
    for (int m = 0; m < count; ++m) moments[m] = State(a, a.moments[m], rounded_moment(m)).at(i);
    const double copy = std::visit(
        [&](const auto& rule) { return define(rule, given, parameter, moments); }, a.rule);
    for (int m = 0; m < count; ++m) State(a, a.moments[m], rounded_moment(m)).set(i, moments[m]);
    parameters.set(i, parameter);
    if (compute) compute.set(i, is_direction(a.rule) ? copy : parameters.at(i));
  }
}

}  // namespace dstrain::kernels::reference
