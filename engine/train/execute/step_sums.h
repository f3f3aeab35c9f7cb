#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "engine/comm/communicator.h"
#include "engine/train/execute/step_outcome.h"

namespace dstrain {

/// What norm adds up over all ranks in a step, and beside it the optimizer's control. One tensor,
/// so that one all-reduce adds all sums, and one copy brings to the host what it reads:
/// [running statistics | figures of pairs | sum of squares, totals, stop votes, requests |
/// control].
class StepSums {
 public:
  /// `running`: numbers of running statistics; `figures`: of pairs, 0 where samples are none.
  StepSums(std::int64_t running, std::int64_t figures, const c10::Device& device);

  /// In the order of the current stream: nothing is added up yet. The control stays.
  void clear() { reduced_.zero_(); }
  /// What a rank was asked for, from now on among its sums.
  void request(const StepRequests& requests);
  void add_over(Communicator& world) { world.all_reduce(reduced_, ReduceOp::sum); }

  [[nodiscard]] at::Tensor running() const { return reduced_.narrow(0, 0, running_); }
  /// [ops::kPairFigures]; undefined where samples are no pairs.
  [[nodiscard]] at::Tensor pair_figures() const;
  /// [kNumTotals], to which the head adds.
  [[nodiscard]] at::Tensor totals() const;
  /// Its first number is the sum of squares of gradients.
  [[nodiscard]] const at::Tensor& sums() const { return sums_; }
  /// [optimizer::kControlSize] (StepControl).
  [[nodiscard]] const at::Tensor& control() const { return control_; }
  void set_control(const ControlState& state);  ///< waits for the device

  /// In the order of the current stream: a copy on the host, there once the stream has come to it.
  [[nodiscard]] at::Tensor to_host() const;
  /// What such a copy says of a step of so many samples.
  [[nodiscard]] StepOutcome outcome(const at::Tensor& host, std::int64_t samples) const;

 private:
  std::int64_t running_, figures_;
  at::Tensor reduced_;    ///< all but the control
  at::Tensor telemetry_;  ///< all but running statistics
  at::Tensor sums_, control_;
};

}  // namespace dstrain
