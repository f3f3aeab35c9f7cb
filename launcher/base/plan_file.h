#pragma once

#include <cstdint>
#include <filesystem>

namespace dstrain::launcher {

/// What the launcher takes from plan.json, which rank 0 writes before the first step; 0: not there.
struct PlanFile {
  std::int64_t allocated_bytes = 0;  ///< peak memory of a rank
  double step_s = 0;                 ///< of one training step
};
/// Reads the plan of a run directory. A file that is missing or broken says nothing.
[[nodiscard]] PlanFile read_plan(const std::filesystem::path& run);

}  // namespace dstrain::launcher
