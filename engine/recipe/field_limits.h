#pragma once

/// Largest values of fields that several sections have.
namespace dstrain {

inline constexpr double kMaxSteps = 2000000000;

}  // namespace dstrain
