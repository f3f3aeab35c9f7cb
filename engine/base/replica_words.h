#pragma once

#include <string_view>

namespace dstrain {

/// First words of the error of a rank that holds other weights than most of those that should hold
/// the same, by which the launcher knows that its machine is at fault.
inline constexpr std::string_view kWrongReplica = "wrong replica";
/// The same where no rank can be told to be the wrong one.
inline constexpr std::string_view kReplicasDiffer = "replicas differ";

}  // namespace dstrain
