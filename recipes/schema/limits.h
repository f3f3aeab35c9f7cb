#pragma once

/// Limits that fields of several sections share.
namespace dstrain {

inline constexpr double kMaxSteps = 2000000000;

}  // namespace dstrain
