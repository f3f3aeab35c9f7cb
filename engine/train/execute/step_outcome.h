#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/train/execute/replicas.h"
#include "engine/train/measure/step_timer.h"

namespace dstrain {

/// Means over pairs of answers, as TRL names them.
struct PairMeans {
  double rewards_chosen = 0, rewards_rejected = 0;
  double logps_chosen = 0, logps_rejected = 0;
  [[nodiscard]] double margin() const { return rewards_chosen - rewards_rejected; }
};

/// What the ranks agreed on about one optimizer step.
struct StepOutcome {
  std::int64_t step = 0;
  /// Time of the step on this rank's device: from the end of the step before it where that one was
  /// under way when this one was enqueued, else from its own first work.
  double step_s = 0;
  double loss = 0;  ///< mean over the targets of the global batch
  double top1 = 0;  ///< share of targets; nan beside a loss that is not finite
  double top5 = 0;
  double targets = 0;       ///< labelled samples or tokens
  double balance_loss = 0;  ///< of experts, mean over samples and layers, without its coefficient
  std::optional<PairMeans> pairs = {};  ///< where samples are pairs
  double gradient_norm = 0;
  double loss_scale = 1;
  double good_steps = 0;
  double applied_steps = 0;
  double skipped_steps = 0;
  double tolerated_steps = 0;        ///< that the hysteresis of the loss scale has taken up
  bool skipped = false;              ///< a gradient was not finite
  bool stop = false;                 ///< some rank was asked to stop
  int trace_steps = 0;               ///< that rank 0 was asked to trace from now on
  bool save = false;                 ///< rank 0 wants a checkpoint by the clock
  std::optional<StepTimes> times{};  ///< of this rank, where the step was timed
  std::optional<Replicas::Hashes> replicas{};  ///< where they were compared
};

/// What a rank was asked for from outside; all ranks learn of it by the step's sums.
struct StepRequests {
  bool stop = false;
  // Rank 0 alone may ask for these.
  int trace_steps = 0;  ///< from 1 to trace::kMaxTraceSteps
  bool save = false;
};

struct EvaluationTotals {
  double loss = 0;  ///< mean
  double top1 = 0;  ///< nan beside a loss that is not finite
  double top5 = 0;
  double targets = 0;
  /// [classes, classes] int64 on the host, of images: how often samples of the class of the row
  /// were taken for that of the column, by top-1's rule; the diagonal's sum is top1 * targets.
  /// Undefined with more than report::Confusion::kMaxClasses, or beside a loss that is not finite.
  at::Tensor confusion = {};
  std::optional<PairMeans> pairs = {};         ///< where samples are pairs
  std::vector<EvaluationTotals> members = {};  ///< of a mixture, in its order
};

/// State of the dynamic loss scale and the counters that a checkpoint keeps.
struct ControlState {
  double loss_scale = 1;
  double good_steps = 0;
  double applied_steps = 0;
  double skipped_steps = 0;
  double tolerated_steps = 0;
};

}  // namespace dstrain
