#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/nn/block_state.h"

namespace dstrain {

/// Elements of the step's sums of all states that the engine moves (StateChange::step_mean).
[[nodiscard]] std::int64_t step_sum_elements(const std::vector<BlockState*>& states);

/// Untrained tensors that change once in each applied step: running statistics by the sums of the
/// step, counters by one.
class RunningStates {
 public:
  /// `states` of the whole model, whose values are bound where this rank holds them: those of
  /// step_mean to one tensor, one after the other. `sums` [step_sum_elements] fp32, to be zeroed
  /// before each step and summed over the data ranks before apply.
  RunningStates(const std::vector<BlockState*>& states, const at::Tensor& sums);

  /// On the current stream; `skip` [] fp32: 0 where the step is applied. `samples` of the global
  /// batch, or images where each sample has several.
  void apply(const at::Tensor& skip, std::int64_t samples) const;

 private:
  /// Values that lie one after the other, as their sums do.
  struct Run {
    at::Tensor values, sums, shares;  ///< [n] fp32
  };
  std::vector<Run> runs_;
  std::vector<at::Tensor> counters_;  ///< [] int64, each once
};

}  // namespace dstrain
