#include <algorithm>
#include <cmath>

#include "engine/kernels/control.h"
#include "engine/kernels/reference_view.h"
#include "engine/kernels/stochastic_rounding.h"

/// The optimizer's kernels as their definitions read; arithmetic in double, states in fp32.
namespace dstrain::kernels::reference {

using namespace dstrain::optimizer;

void add_squares(const AddSquares& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count; ++i) sum += std::pow(static_cast<double>(a.x[i]), 2);
  add_to(*a.sum, static_cast<double>(a.factor) * sum);
}

void finish_gradients(const FinishGradients& a) {
  float* control = a.control;
  const float scale = control[kLossScale];
  const double norm = std::sqrt(static_cast<double>(*a.sum)) / static_cast<double>(scale);
  control[kGradientNorm] = static_cast<float>(norm);
  control[kSkip] = std::isfinite(norm) ? 0.0f : 1.0f;
  if (!std::isfinite(norm)) {
    control[kGradientFactor] = 0;
    control[kSkippedSteps] += 1;
    control[kGoodSteps] = 0;
    if (a.dynamic_loss_scale && scale > kMinLossScale)
      control[kLossScale] = std::max(scale / 2, kMinLossScale);
    return;
  }
  const double clip =
      a.clip_norm > 0 ? std::min(1.0, static_cast<double>(a.clip_norm) / (norm + 1e-6)) : 1.0;
  control[kGradientFactor] = static_cast<float>(clip / static_cast<double>(scale));
  control[kAppliedSteps] += 1;
  control[kGoodSteps] += 1;
  if (a.dynamic_loss_scale && control[kGoodSteps] >= static_cast<float>(a.growth_interval)) {
    if (scale < kMaxLossScale) control[kLossScale] = std::min(scale * 2, kMaxLossScale);
    control[kGoodSteps] = 0;
  }
}

void adamw(const AdamWStep& a) {
  if (a.control[kSkip] != 0) return;
  const View compute(a.compute, a.dtype);
  const double t = static_cast<double>(a.control[kAppliedSteps]);
  const double correction1 = 1 - std::pow(a.beta1, t), correction2 = 1 - std::pow(a.beta2, t);
  for (std::int64_t i = 0; i < a.count; ++i) {
    const double g =
        static_cast<double>(a.gradient[i]) * static_cast<double>(a.control[kGradientFactor]);
    const double average = a.beta1 * static_cast<double>(a.exp_avg[i]) + (1 - a.beta1) * g;
    const double square = a.beta2 * static_cast<double>(a.exp_avg_sq[i]) + (1 - a.beta2) * g * g;
    double master = static_cast<double>(a.master[i]) * (1 - a.lr * a.weight_decay);
    master -= a.lr * (average / correction1) / (std::sqrt(square / correction2) + a.eps);
    a.exp_avg[i] = static_cast<float>(average);
    a.exp_avg_sq[i] = static_cast<float>(square);
    a.master[i] = static_cast<float>(master);
    if (compute) compute.set(i, static_cast<double>(a.master[i]));
  }
}

void sgd(const SgdStep& a) {
  if (a.control[kSkip] != 0) return;
  const View compute(a.compute, a.dtype);
  for (std::int64_t i = 0; i < a.count; ++i) {
    const double g =
        static_cast<double>(a.gradient[i]) * static_cast<double>(a.control[kGradientFactor]);
    const double decayed = g + a.weight_decay * static_cast<double>(a.master[i]);
    const double buffer = a.momentum * static_cast<double>(a.momentum_buffer[i]) + decayed;
    a.momentum_buffer[i] = static_cast<float>(buffer);
    a.master[i] = static_cast<float>(static_cast<double>(a.master[i]) - a.lr * buffer);
    if (compute) compute.set(i, static_cast<double>(a.master[i]));
  }
}

namespace {

/// Rounds one element's state to bf16.
template <typename Step>
std::uint16_t rounded(const Step& a, std::int64_t i, double value, RoundedState state) {
  const std::int64_t element = a.first_element + i;
  const auto bits = RoundingBits::at(random_key(a.seed, RandomStream::rounding),
                                     static_cast<std::uint64_t>(a.control[kAppliedSteps]),
                                     element / RoundingBits::kTogether, state);
  return round_stochastically(static_cast<float>(value),
                              bits.of(static_cast<int>(element % RoundingBits::kTogether)));
}

}  // namespace

void adamw_bf16(const AdamWBf16Step& a) {
  if (a.control[kSkip] != 0) return;
  auto* const parameters = static_cast<std::uint16_t*>(a.parameters);
  auto* const averages = static_cast<std::uint16_t*>(a.exp_avg);
  auto* const squares = static_cast<std::uint16_t*>(a.exp_avg_sq);
  const double t = static_cast<double>(a.control[kAppliedSteps]);
  const double correction1 = 1 - std::pow(a.beta1, t), correction2 = 1 - std::pow(a.beta2, t);
  for (std::int64_t i = 0; i < a.count; ++i) {
    const double g =
        static_cast<double>(a.gradient[i]) * static_cast<double>(a.control[kGradientFactor]);
    const double average =
        a.beta1 * static_cast<double>(bf16_value(averages[i])) + (1 - a.beta1) * g;
    const double square =
        a.beta2 * static_cast<double>(bf16_value(squares[i])) + (1 - a.beta2) * g * g;
    double parameter = static_cast<double>(bf16_value(parameters[i])) * (1 - a.lr * a.weight_decay);
    parameter -= a.lr * (average / correction1) / (std::sqrt(square / correction2) + a.eps);
    averages[i] = rounded(a, i, average, RoundedState::first_moment);
    squares[i] = rounded(a, i, square, RoundedState::second_moment);
    parameters[i] = rounded(a, i, parameter, RoundedState::parameter);
  }
}

void sgd_bf16(const SgdBf16Step& a) {
  if (a.control[kSkip] != 0) return;
  auto* const parameters = static_cast<std::uint16_t*>(a.parameters);
  auto* const buffers = static_cast<std::uint16_t*>(a.momentum_buffer);
  for (std::int64_t i = 0; i < a.count; ++i) {
    const double g =
        static_cast<double>(a.gradient[i]) * static_cast<double>(a.control[kGradientFactor]);
    const auto parameter = static_cast<double>(bf16_value(parameters[i]));
    const double buffer =
        a.momentum * static_cast<double>(bf16_value(buffers[i])) + g + a.weight_decay * parameter;
    buffers[i] = rounded(a, i, buffer, RoundedState::first_moment);
    parameters[i] = rounded(a, i, parameter - a.lr * buffer, RoundedState::parameter);
  }
}

}  // namespace dstrain::kernels::reference
