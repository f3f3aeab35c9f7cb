#include "launcher/job/restart_budget.h"

#include <utility>

namespace dstrain::launcher {
namespace {

bool is_alike(const FailedStart& a, const FailedStart& b) {
  const bool any_host = a.kind != FailureKind::host;  // a step loses no host
  return a.kind == b.kind && (a.host == b.host || (any_host && a.step == b.step));
}

}  // namespace

RestartBudget::Verdict RestartBudget::decide(FailedStart start) {
  const bool further = start.step > best_step_;
  there_again_ = !further && start.kind == last_.kind && start.host == last_.host;
  if (further) {
    best_step_ = start.step;
    num_starts_ = 0;
    num_restarts_ = 0;
  } else if (!is_alike(last_, start)) {
    num_starts_ = 0;
  }
  ++num_starts_;
  const bool curable = start.curable;
  last_ = std::move(start);
  if (max_ == 0 || !curable) return Verdict::unasked;
  if (num_starts_ >= kMaxStarts) return Verdict::stuck;
  if (num_restarts_ >= max_) return Verdict::used_up;
  ++num_restarts_;
  return Verdict::again;
}

}  // namespace dstrain::launcher
