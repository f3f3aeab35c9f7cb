#pragma once

#include "engine/base/error.h"
#include "engine/kernels/loss/ops_linear_preference.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// The operator's form of the recipe's section.
[[nodiscard]] inline ops::PairLoss pair_loss(const PreferenceConfig& config) {
  using Kind = ops::PairLoss::Kind;
  const auto kind = [&] {
    switch (config.loss) {
      case PreferenceLoss::none:
        return Kind::none;
      case PreferenceLoss::dpo:
        return Kind::dpo;
      case PreferenceLoss::ipo:
        return Kind::ipo;
      case PreferenceLoss::simpo:
        return Kind::simpo;
      case PreferenceLoss::orpo:
        return Kind::orpo;
    }
    DSTRAIN_CHECK(false, "no such loss");
  };
  return {
      .kind = kind(), .beta = config.beta, .gamma = config.gamma, .smoothing = config.smoothing};
}

}  // namespace dstrain
