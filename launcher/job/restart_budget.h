#pragma once

#include <cstdint>
#include <string>

#include "launcher/job/failure.h"

namespace dstrain::launcher {

/// How one start failed.
struct FailedStart {
  std::int64_t step = -1;  ///< its highest
  bool curable = true;     ///< another start may go better
  FailureKind kind = FailureKind::error;
  std::string host = {};  ///< that of the failed rank, or the one that was lost
};

/// Whether a job that failed starts again. A start that came further than all before it refills
/// the budget. Some in a row that came no further and failed alike end the job whatever is left of
/// it: at the same step or on the same host, for a failure of one kind. Large jobs lose one host
/// after another before they come further, and go on.
class RestartBudget {
 public:
  enum class Verdict {
    again,
    unasked,  ///< no restarts are wanted, or none would help
    used_up,
    stuck  ///< another start does not help
  };
  /// Starts in a row that fail alike before the job gives up for good.
  static constexpr int kMaxStarts = 3;

  /// `max`: restarts without progress between them.
  explicit RestartBudget(int max) : max_(max) {}

  /// A verdict `again` spends one restart.
  [[nodiscard]] Verdict decide(FailedStart start);

  /// The restart runs without a host that failed, with a spare in its place: spares are limit
  /// enough.
  void spend_spare() { --num_restarts_; }

  /// The last start came no further and failed as the one before it, on the same host.
  [[nodiscard]] bool failed_there_again() const { return there_again_; }
  [[nodiscard]] std::int64_t best_step() const { return best_step_; }
  [[nodiscard]] int num_starts() const { return num_starts_; }
  [[nodiscard]] int num_restarts() const { return num_restarts_; }

 private:
  int max_;
  std::int64_t best_step_ = -1;
  FailedStart last_;
  bool there_again_ = false;
  int num_starts_ = 0;    ///< that failed alike since the job last came further
  int num_restarts_ = 0;  ///< of the budget, since then
};

}  // namespace dstrain::launcher
