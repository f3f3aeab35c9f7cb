#include "engine/train/session/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dstrain {
namespace {

/// Share of the rise that is done at `position` of `steps`, both above 0.
double risen(Warmup course, double position, double steps) {
  switch (course) {
    case Warmup::linear:
      return position / steps;
    case Warmup::log:
      return std::min(1.0, std::log(position + 1) / std::log(steps));
  }
  return 1;
}

/// Drops of schedule step before `step`. What rounding takes from a quotient loses none.
double drops(const OptimizerConfig& optimizer, double step, const ScheduleSpan& span) {
  const double interval = optimizer.step_epochs * static_cast<double>(span.steps_per_epoch);
  return std::floor(step / interval * (1 + 1e-12));
}

}  // namespace

double learning_rate(const OptimizerConfig& optimizer, std::int64_t step,
                     const ScheduleSpan& span) {
  const std::int64_t warmup = optimizer.warmup_steps, position = step + optimizer.warmup_shift;
  if (position < warmup) {
    const double rise = position <= 0 ? 0
                                      : risen(optimizer.warmup, static_cast<double>(position),
                                              static_cast<double>(warmup));
    return optimizer.lr * (optimizer.warmup_ratio + (1 - optimizer.warmup_ratio) * rise);
  }
  const std::int64_t end = optimizer.decay_steps > 0 ? optimizer.decay_steps : span.steps;
  const auto decay_steps = static_cast<double>(std::max<std::int64_t>(1, end - warmup));
  const auto done_at = [&](std::int64_t place) {
    return std::clamp(static_cast<double>(place - warmup) / decay_steps, 0.0, 1.0);
  };
  double remaining = 1;
  switch (optimizer.schedule) {
    case Schedule::constant:
      return optimizer.lr;
    case Schedule::step:
      return optimizer.lr *
             std::pow(optimizer.step_factor, drops(optimizer, static_cast<double>(step), span));
    case Schedule::linear:
      remaining = 1 - done_at(std::min(step, position));
      break;
    case Schedule::cosine:
      remaining = (1 + std::cos(std::numbers::pi * done_at(step))) / 2;
      break;
  }
  return optimizer.lr * (optimizer.final_lr_ratio + (1 - optimizer.final_lr_ratio) * remaining);
}

double first_loss_scale(const PrecisionConfig& precision) {
  if (precision.compute != ComputeType::fp16) return 1;
  return precision.loss_scale.fixed > 0 ? precision.loss_scale.fixed : precision.loss_scale.initial;
}

double average_share(const EmaConfig& ema, std::int64_t step) {
  if (ema.decay == 0 || (step + 1) % ema.every != 0) return 0;
  const auto update = static_cast<double>((step + 1) / ema.every - 1);
  const double decay = ema.warmup ? std::min(ema.decay, (1 + update) / (10 + update)) : ema.decay;
  return 1 - decay;
}

}  // namespace dstrain
