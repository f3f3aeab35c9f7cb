#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/program/program.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// For measurements: from the step on that DSTRAIN_SKIP_EXCHANGES names (the first is 1), ranks
/// exchange no parameters and no gradients, and what they train is of no use. So only a run that
/// writes no checkpoint may do it.
class SkippedExchanges {
 public:
  /// As the environment says. Error{usage} where that is no step, or the run writes checkpoints.
  explicit SkippedExchanges(const RunConfig& run);

  /// For CommunicatorOptions::skips of a communicator of `channel`; null: it skips nothing.
  [[nodiscard]] std::shared_ptr<const std::atomic<bool>> flag(const CommChannel& channel) const;
  /// `step`, from 0, is enqueued next.
  void enter(std::int64_t step);
  /// What the user is to know of it; empty where nothing is skipped.
  [[nodiscard]] std::string note() const;

 private:
  std::shared_ptr<std::atomic<bool>> skips_;  ///< null: nothing is ever skipped
  std::int64_t first_ = 0;                    ///< step, from 1
};

}  // namespace dstrain
