#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/base/gpu_limits.h"
#include "engine/base/rank_record.h"
#include "engine/train/session/world.h"

/// What all ranks find out together through the store, before they have communicators.
namespace dstrain {

inline constexpr auto kPatience = std::chrono::minutes(10);  ///< with ranks that start later

/// The amount of the rank that has least of `what`; all ranks get the same answer.
[[nodiscard]] std::int64_t smallest_on_all(std::int64_t own, const std::string& what,
                                           const World& world, RankRecordFile& record);

/// This rank's limits, with the number formats that the devices of all ranks multiply.
[[nodiscard]] GpuLimits limits_on_all(const World& world, RankRecordFile& record);

}  // namespace dstrain
