#include "engine/train/measure/trace_regions.h"

#include <c10/core/AutogradState.h>
#include <fmt/format.h>

#include <utility>

namespace dstrain {
namespace {

const char* region_name(Phase phase) {
  switch (phase) {
    case Phase::forward:
      return "## Forward Pass ##";
    case Phase::backward:
      return "## Backward Pass ##";
    case Phase::norm:
    case Phase::update:
      break;
  }
  return "## Optimizer Step ##";
}

}  // namespace

TraceRegions::TraceRegions(const Program& training, std::vector<std::string> names,
                           c10::Device device, bool graphs)
    : training_(training), names_(std::move(names)), device_(device), graphs_(graphs) {}

void TraceRegions::open(Scope& scope, const std::string& name) {
  scope.emplace(at::RecordScope::USER_SCOPE);
  if (scope->isActive()) scope->before(name);
}

void TraceRegions::restart(bool keep) {
  runs_.clear();
  keep_ = keep;
}

void TraceRegions::begin_step(std::int64_t step) {
  step_ = step + 1;
  auto& autograd = c10::AutogradState::get_tls_state();
  threads_ = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(false);
  open(profiler_step_, fmt::format("ProfilerStep#{}", step_));
  open(step_scope_, fmt::format("## Training Step {} ##", step_));
}

void TraceRegions::begin(std::size_t action) {
  const auto phase = kind_row(training_.actions[action].kind).phase;
  if (phase && (!phase_ || std::string_view(region_name(*phase)) != region_name(*phase_))) {
    phase_scope_.reset();
    open(phase_scope_, region_name(*phase));
    phase_ = phase;
  }
  open(action_scope_, names_[action]);
  if (keep_) runs_.push_back({.step = step_, .action = static_cast<int>(action)});
}

void TraceRegions::replayed(const std::vector<ReplayedAction>& actions) {
  if (!keep_) return;
  for (const ReplayedAction& one : actions)
    runs_.back().replayed.push_back({static_cast<int>(one.action), one.device_events});
}

void TraceRegions::end(std::size_t /*action*/) {
  action_scope_.reset();
  if (!keep_) return;
  const MemoryFigures memory = allocator_figures(device_);
  runs_.back().allocated = memory.allocated;
  runs_.back().reserved = memory.reserved;
}

void TraceRegions::end_step() {
  phase_scope_.reset();
  phase_.reset();
  step_scope_.reset();
  profiler_step_.reset();
  c10::AutogradState::get_tls_state().set_multithreading_enabled(threads_);
}

}  // namespace dstrain
