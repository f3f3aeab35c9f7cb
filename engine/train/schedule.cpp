#include "engine/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dstrain {

double learning_rate(const OptimizerConfig& optimizer, std::int64_t step,
                     std::int64_t total_steps) {
  if (step < optimizer.warmup_steps) {
    return optimizer.lr * static_cast<double>(step + 1) / optimizer.warmup_steps;
  }
  const auto decay_steps =
      static_cast<double>(std::max<std::int64_t>(1, total_steps - optimizer.warmup_steps));
  const double done =
      std::min(1.0, static_cast<double>(step - optimizer.warmup_steps) / decay_steps);
  double remaining = 1;
  switch (optimizer.schedule) {
    case Schedule::constant:
    case Schedule::step:
      return optimizer.lr;
    case Schedule::linear:
      remaining = 1 - done;
      break;
    case Schedule::cosine:
      remaining = (1 + std::cos(std::numbers::pi * done)) / 2;
      break;
  }
  return optimizer.lr * (optimizer.final_lr_ratio + (1 - optimizer.final_lr_ratio) * remaining);
}

}  // namespace dstrain
