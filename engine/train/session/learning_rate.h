#pragma once

#include <cstdint>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// What a schedule spans.
struct ScheduleSpan {
  std::int64_t steps = 1;
  std::int64_t steps_per_epoch = 1;
};

/// Learning rate of optimizer step `step`, from 0. With position p = step + warmup_shift and w =
/// warmup_steps: while p < w it rises from warmup_ratio * lr to lr by p / w or by log(p + 1) /
/// log(w). Then it is constant, falls to final_lr_ratio * lr at the last step or decay_steps in a
/// straight line or by half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5, one
/// period), or is multiplied by step_factor each step_epochs epochs. A negative shift moves the
/// line, too, not the cosine. So warmup_shift -1 is DeepSpeed's WarmupLR and WarmupDecayLR, 0 the
/// schedules of transformers.
[[nodiscard]] double learning_rate(const OptimizerConfig& optimizer, std::int64_t step,
                                   const ScheduleSpan& span);

/// The factor on the loss before the first step; what is fixed, is so in a run that goes on, too.
[[nodiscard]] double first_loss_scale(const PrecisionConfig& precision);

/// Share of the new weights in their average after optimizer step `step`, from 0: 1 - decay in each
/// `every`-th step, 0 in the others. With a warm-up the decay is at most (1 + t) / (10 + t) at
/// update t, from 0, as TensorFlow's ExponentialMovingAverage.
[[nodiscard]] double average_share(const EmaConfig& ema, std::int64_t step);

}  // namespace dstrain
