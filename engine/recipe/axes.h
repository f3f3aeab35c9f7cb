#pragma once

#include <array>
#include <cstdint>

#include "engine/mesh/mesh.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// An axis whose degree a recipe gives as parallel.NAME.
struct AxisKey {
  Axis axis;
  int ParallelConfig::*degree;
};
/// In the order in which people list them.
inline constexpr std::array kAxisKeys = {AxisKey{Axis::pipeline, &ParallelConfig::pipeline},
                                         AxisKey{Axis::tensor, &ParallelConfig::tensor},
                                         AxisKey{Axis::sequence, &ParallelConfig::sequence},
                                         AxisKey{Axis::expert, &ParallelConfig::expert}};

/// Those that the recipe gives; 1 for the others, which take what these leave of the ranks.
[[nodiscard]] inline Degrees given_degrees(const ParallelConfig& parallel) {
  Degrees degrees;
  for (const auto& [axis, degree] : kAxisKeys) degrees[axis] = parallel.*degree;
  return degrees;
}

/// Ranks that work on the same samples together; the others see different ones.
[[nodiscard]] inline std::int64_t ranks_per_sample(const ParallelConfig& parallel) {
  return product(given_degrees(parallel), kAllAxes - kDataAxes);
}

}  // namespace dstrain
