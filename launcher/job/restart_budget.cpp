#include "launcher/job/restart_budget.h"

namespace dstrain::launcher {

RestartBudget::Verdict RestartBudget::decide(std::int64_t step, bool curable) {
  if (step > best_step_) {
    best_step_ = step;
    num_starts_ = 0;
    num_restarts_ = 0;
  }
  ++num_starts_;
  if (max_ == 0 || !curable) return Verdict::unasked;
  if (num_starts_ >= kMaxStarts) return Verdict::stuck;
  if (num_restarts_ >= max_) return Verdict::used_up;
  ++num_restarts_;
  return Verdict::again;
}

}  // namespace dstrain::launcher
