#include "engine/train/execute/step_sums.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "engine/device/device.h"
#include "engine/device/pinned.h"
#include "engine/kernels/copy/copy.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/nn/block.h"
#include "engine/program/program.h"
#include "engine/train/measure/step_totals.h"

namespace dstrain {
namespace {

constexpr std::int64_t kTotals = 1;  ///< after the sum of squares
constexpr std::int64_t kStopVotes = kTotals + kNumTotals;
/// What rank 0 asks for: steps to trace, and kSaveRequest more for a checkpoint.
constexpr std::int64_t kRequests = kStopVotes + 1;
constexpr int kSaveRequest = 1 << 16;
constexpr std::int64_t kNumSums = kRequests + 1;
static_assert(kNumSums == kNumStepSums, "the program names the bytes of norm's all-reduce");

}  // namespace

StepSums::StepSums(std::int64_t running, std::int64_t figures, const c10::Device& device)
    : running_(running), figures_(figures) {
  const std::int64_t reduced = running + figures + kNumSums;
  const at::Tensor all = at::zeros({reduced + optimizer::kControlSize},
                                   at::TensorOptions().dtype(at::kFloat).device(device));
  reduced_ = all.narrow(0, 0, reduced);
  telemetry_ = all.narrow(0, running, all.numel() - running);
  sums_ = all.narrow(0, running + figures, kNumSums);
  control_ = all.narrow(0, reduced, optimizer::kControlSize);
}

void StepSums::request(const StepRequests& requests) {
  if (requests.stop) sums_.select(0, kStopVotes).fill_(1);
  const int number = requests.trace_steps + (requests.save ? kSaveRequest : 0);
  if (number > 0) sums_.select(0, kRequests).fill_(number);
}

at::Tensor StepSums::pair_figures() const {
  return figures_ > 0 ? telemetry_.narrow(0, 0, figures_) : at::Tensor();
}

at::Tensor StepSums::totals() const { return sums_.narrow(0, kTotals, kNumTotals); }

void StepSums::set_control(const ControlState& state) {
  using namespace optimizer;
  const at::Tensor host = at::zeros({kControlSize}, at::kFloat);
  auto* values = host.mutable_data_ptr<float>();
  values[kLossScale] = static_cast<float>(state.loss_scale);
  values[kGoodSteps] = static_cast<float>(state.good_steps);
  values[kAppliedSteps] = static_cast<float>(state.applied_steps);
  values[kSkippedSteps] = static_cast<float>(state.skipped_steps);
  values[kToleratedSteps] = static_cast<float>(state.tolerated_steps);
  control_.copy_(host);
  synchronize(control_.device());
}

at::Tensor StepSums::to_host() const {
  at::Tensor host = host_tensor({telemetry_.numel()}, at::kFloat, telemetry_.device());
  copy_beside(host, telemetry_);  // the next step would wait for states on their way to the host
  return host;
}

StepOutcome StepSums::outcome(const at::Tensor& host, std::int64_t samples) const {
  const auto* figures = host.const_data_ptr<float>();
  const float* sums = figures + figures_;
  const float* control = sums + kNumSums;
  const EvaluationTotals totals = means(sums + kTotals);
  return {
      .loss = totals.loss,
      .top1 = totals.top1,
      .top5 = totals.top5,
      .targets = totals.targets,
      .balance_loss = sums[kTotals + kBalanceTotal] / std::max(1.0, static_cast<double>(samples)),
      .pairs = figures_ == 0 ? std::nullopt : std::optional(pair_means(figures, totals.targets)),
      .gradient_norm = control[optimizer::kGradientNorm],
      .loss_scale = control[optimizer::kLossScale],
      .good_steps = control[optimizer::kGoodSteps],
      .applied_steps = control[optimizer::kAppliedSteps],
      .skipped_steps = control[optimizer::kSkippedSteps],
      .tolerated_steps = control[optimizer::kToleratedSteps],
      .skipped = control[optimizer::kSkip] != 0,
      .stop = sums[kStopVotes] > 0,
      .trace_steps = static_cast<int>(sums[kRequests]) % kSaveRequest,
      .save = sums[kRequests] >= kSaveRequest};
}

}  // namespace dstrain
