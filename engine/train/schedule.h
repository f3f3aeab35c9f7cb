#pragma once

#include <cstdint>

#include "recipes/schema/recipe.h"

namespace dstrain {

/// Learning rate of optimizer step `step` (from 0) of `total_steps`. Linear warm-up from lr /
/// warmup_steps to lr, then constant, linear or cosine (Loshchilov & Hutter 2017, arXiv:1608.03983,
/// eq. 5, one period) to final_lr_ratio * lr.
[[nodiscard]] double learning_rate(const OptimizerConfig& optimizer, std::int64_t step,
                                   std::int64_t total_steps);

}  // namespace dstrain
