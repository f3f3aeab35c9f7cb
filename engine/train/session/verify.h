#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/recipe/recipe.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// One optimizer step on one rank and under the recipe's strategy.
struct VerifyStep {
  double reference_loss = 0;
  double loss = 0;
  double reference_norm = 0;
  double norm = 0;
  double update_difference =
      0;  ///< |strategy - reference| / |reference - start| over all weights, Euclidean
  std::string worst_tensor = {};  ///< largest absolute difference of any element
  double worst_difference = 0;
  double scalar_tolerance = 0;  ///< on loss and norm, relative
  double update_tolerance = 0;
  [[nodiscard]] bool passed() const;
};

/// Runs `steps` optimizer steps on rank 0 alone, then the same on all ranks under the strategy, and
/// compares. Collective; the result is complete on rank 0 and empty elsewhere.
///
/// Tolerances follow from u, the unit roundoff of the compute type (2^-24, 2^-11 fp16, 2^-8 bf16).
/// Loss and norm are sums whose order differs: 64 u per step in fp32, 4 u in the narrow types,
/// whose sums are kept in fp32. A relative gradient error of u flips the sign of a share u of
/// Adam's updates, each by twice its size: 2 sqrt(u) of the update. States in bf16 that tensor or
/// expert ranks cut are rounded with other random bits: half of the squared distance of bf16
/// numbers is added for each weight. All grow with the square root of the step.
///
/// Where ranks share the statistics of batch norm, these are sums of another order that all layers
/// carry on: 2 sqrt(u) for loss and norm of the first step, too, and none for later ones, as a step
/// of MobileNetV2 makes such differences a hundred times larger. Nothing drops out there.
///
/// `note` is told on rank 0 of each step. The host of rank 0 holds `steps` + 2 copies of the
/// weights in fp32.
[[nodiscard]] std::vector<VerifyStep> verify_strategy(
    const Recipe& recipe, const World& world, int steps, RankRecordFile& record,
    const std::function<void(const std::string&)>& note);

/// The table that `dstrain verify` prints, with the verdict as its last line.
[[nodiscard]] std::string verify_report(const std::vector<VerifyStep>& steps, const Recipe& recipe,
                                        int world_size);

}  // namespace dstrain
