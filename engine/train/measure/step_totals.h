#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/train/execute/step_outcome.h"

namespace dstrain {

/// From sums in the order of kNumTotals. Beside a loss that is not finite, shares say nothing: nan.
template <typename Number>
EvaluationTotals means(const Number* totals) {
  const double targets = std::max(1.0, static_cast<double>(totals[3]));
  double loss = static_cast<double>(totals[0]) / targets;
  if (std::isnan(loss)) loss = std::numeric_limits<double>::quiet_NaN();  // never "-nan"
  const auto share = [&](Number count) {
    return std::isfinite(loss) ? static_cast<double>(count) / targets
                               : std::numeric_limits<double>::quiet_NaN();
  };
  return {.loss = loss,
          .top1 = share(totals[1]),
          .top5 = share(totals[2]),
          .targets = static_cast<double>(totals[3])};
}

/// From sums in the order of ops::kPairFigures over `pairs`.
template <typename Number>
PairMeans pair_means(const Number* figures, double pairs) {
  const auto mean = [&](int i) { return static_cast<double>(figures[i]) / std::max(1.0, pairs); };
  return {.rewards_chosen = mean(0),
          .rewards_rejected = mean(1),
          .logps_chosen = mean(2),
          .logps_rejected = mean(3)};
}

}  // namespace dstrain
