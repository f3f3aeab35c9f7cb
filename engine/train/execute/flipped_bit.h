#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/models/groups.h"
#include "engine/train/state/state_store.h"

namespace dstrain {

/// For tests: DSTRAIN_FLIP="rank:step:tensor:bit" makes a rank hold a wrong bit. At the end of the
/// step (from 1), before its weights are compared and updated, the bit (of fp32, 31 is the sign) of
/// the tensor's first element is flipped in the rank's parameters, and in its master weights where
/// it has those of the element. Only where DSTRAIN_TESTING=1 is set beside it.
class FlippedBit {
 public:
  /// Nothing where the variable is not set. Error{usage} where it is no such text, names no tensor,
  /// or is set without DSTRAIN_TESTING=1.
  [[nodiscard]] static std::optional<FlippedBit> of_environment(const ParameterGroups& groups);

  /// `step` from 0. On the current stream; the states are of `rank`.
  void flip(std::int64_t step, int rank, StateStore& states) const;
  /// What the user is to know of it.
  [[nodiscard]] std::string note() const;

 private:
  std::string text_;
  int rank_ = 0;
  std::int64_t step_ = 0;  ///< from 1
  int group_ = 0;
  std::size_t tensor_ = 0;  ///< of the group
  int bit_ = 0;
};

}  // namespace dstrain
