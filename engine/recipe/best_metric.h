#pragma once

#include "engine/recipe/recipe.h"

namespace dstrain {

[[nodiscard]] constexpr bool is_lower_better(BestMetric metric) {
  return metric == BestMetric::loss || metric == BestMetric::perplexity;
}

/// Whether it needs answers to the test split, as run.generate makes them.
[[nodiscard]] constexpr bool is_of_answers(BestMetric metric) {
  return metric == BestMetric::exact_match || metric == BestMetric::f1 ||
         metric == BestMetric::right_answers;
}

}  // namespace dstrain
