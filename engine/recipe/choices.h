#pragma once

#include <span>
#include <string_view>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// One accepted spelling of a value and what it means.
struct Choice {
  std::string_view name;
  std::string_view text;
  int value = 0;
};

[[nodiscard]] std::span<const Choice> choices(Schedule);
[[nodiscard]] std::span<const Choice> choices(Warmup);
[[nodiscard]] std::span<const Choice> choices(OptimizerName);
[[nodiscard]] std::span<const Choice> choices(RmspropForm);
[[nodiscard]] std::span<const Choice> choices(AdjustLr);
[[nodiscard]] std::span<const Choice> choices(ComputeType);
[[nodiscard]] std::span<const Choice> choices(ReduceType);
[[nodiscard]] std::span<const Choice> choices(GatherType);
[[nodiscard]] std::span<const Choice> choices(StateType);
[[nodiscard]] std::span<const Choice> choices(GradientType);
[[nodiscard]] std::span<const Choice> choices(LossOn);
[[nodiscard]] std::span<const Choice> choices(BestMetric);
[[nodiscard]] std::span<const Choice> choices(TooLong);
[[nodiscard]] std::span<const Choice> choices(BadRecord);
[[nodiscard]] std::span<const Choice> choices(NonFinite);
[[nodiscard]] std::span<const Choice> choices(SequenceAttention);
[[nodiscard]] std::span<const Choice> choices(Recompute);
[[nodiscard]] std::span<const Choice> choices(LoraBase);
[[nodiscard]] std::span<const Choice> choices(OffloadPlace);
[[nodiscard]] std::span<const Choice> choices(OffloadUpdate);
[[nodiscard]] std::span<const Choice> choices(ScheduleName);
[[nodiscard]] std::span<const Choice> choices(Augmentation);
[[nodiscard]] std::span<const Choice> choices(EraseFill);
[[nodiscard]] std::span<const Choice> choices(Decoder);
[[nodiscard]] std::span<const Choice> choices(Pack);
[[nodiscard]] std::span<const Choice> choices(LastStep);
[[nodiscard]] std::span<const Choice> choices(BatchNormOver);
[[nodiscard]] std::span<const Choice> choices(EnsembleAverage);
[[nodiscard]] std::span<const Choice> choices(Fit);
[[nodiscard]] std::span<const Choice> choices(Interpolation);
[[nodiscard]] std::span<const Choice> choices(DatasetName);
[[nodiscard]] std::span<const Choice> choices(Backend);
[[nodiscard]] std::span<const Choice> choices(PreferenceLoss);
[[nodiscard]] std::span<const Choice> choices(TraceDetail);
[[nodiscard]] std::span<const Choice> choices(Compression);
[[nodiscard]] std::span<const Choice> choices(Timing);
[[nodiscard]] std::span<const Choice> choices(WandbMode);

/// How a recipe spells the value: "bf16", "random_crop".
[[nodiscard]] std::string_view spelling(std::span<const Choice> all, int value);
template <class E>
[[nodiscard]] std::string_view spelling(E value) {
  return spelling(choices(value), static_cast<int>(value));
}

}  // namespace dstrain
