#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/program/phases.h"
#include "engine/program/program.h"
#include "engine/trace/rewrite.h"
#include "engine/train/execute/executor.h"

namespace dstrain {

/// Gives the profiler the regions of training steps: step, phase and action. Their backward runs
/// on the training thread, or its kernels would belong to no region.
class TraceRegions final : public StepObserver {
 public:
  /// `names`: by action of `training`, which is kept. `graphs`: graphs are launched as ever.
  TraceRegions(const Program& training, std::vector<std::string> names, c10::Device device,
               bool graphs);

  [[nodiscard]] bool keeps_graphs() const override { return graphs_; }
  void replayed(const std::vector<ReplayedAction>& actions) override;
  void begin_step(std::int64_t step) override;
  void begin(std::size_t action) override;
  void end(std::size_t action) override;
  void end_step() override;

  /// Forgets what was recorded; further actions are kept or not.
  void restart(bool keep);
  [[nodiscard]] std::vector<trace::RecordedRun> take_runs() { return std::move(runs_); }

 private:
  using Scope = std::optional<at::RecordFunction>;
  static void open(Scope& scope, const std::string& name);

  const Program& training_;
  std::vector<std::string> names_;
  c10::Device device_;
  bool graphs_;
  bool keep_ = false;
  std::int64_t step_ = 0;  ///< from 1
  bool threads_ = true;    ///< autograd's, before the step
  Scope profiler_step_;
  Scope step_scope_;
  Scope phase_scope_;
  Scope action_scope_;
  std::optional<Phase> phase_;
  std::vector<trace::RecordedRun> runs_;
};

}  // namespace dstrain
