#pragma once

#include <cstdint>

namespace dstrain::launcher {

/// Whether a job that failed starts again. A start that came further than all before it refills
/// the budget; some in a row that came no further end the job whatever is left of it.
class RestartBudget {
 public:
  enum class Verdict {
    again,
    unasked,  ///< no restarts are wanted, or none would help
    used_up,
    stuck  ///< another start does not help
  };
  /// Starts in a row that come no further before the job gives up for good.
  static constexpr int kMaxStarts = 3;

  /// `max`: restarts without progress between them.
  explicit RestartBudget(int max) : max_(max) {}

  /// A start has failed after `step`, its highest; `curable`: another may go better. A verdict
  /// `again` spends one restart.
  [[nodiscard]] Verdict decide(std::int64_t step, bool curable);

  [[nodiscard]] std::int64_t best_step() const { return best_step_; }
  [[nodiscard]] int num_starts() const { return num_starts_; }
  [[nodiscard]] int num_restarts() const { return num_restarts_; }

 private:
  int max_;
  std::int64_t best_step_ = -1;
  int num_starts_ = 0;    ///< since the job last came further
  int num_restarts_ = 0;  ///< the same, of the budget
};

}  // namespace dstrain::launcher
