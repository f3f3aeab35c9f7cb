#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// The evaluations of a run and which of them is best, by run.best: the file best.json of the run
/// folder.
class BestRecord {
 public:
  explicit BestRecord(const BestConfig& config) : config_(config) {}

  struct Evaluation {
    std::int64_t step = -1;
    double value = 0;
  };
  /// Notes an evaluation; true where it is a gain: better than the best by more than min_delta, or
  /// the first finite value. nan and infinity are none.
  bool add(std::int64_t step, double value);
  /// Evaluations since the last gain.
  [[nodiscard]] int without_gain() const { return without_gain_; }
  [[nodiscard]] bool is_patient() const {
    return config_.patience == 0 || without_gain_ < config_.patience;
  }
  [[nodiscard]] const std::optional<Evaluation>& best() const { return best_; }
  /// "loss 0.4123 at step 1500".
  [[nodiscard]] std::string text() const;

  /// What `run` noted up to `step`, by the same metric; later evaluations come again.
  void take(const std::filesystem::path& run, std::int64_t step);
  /// Writes the file of `run`. Error{checkpoint}.
  void write(const std::filesystem::path& run) const;

 private:
  BestConfig config_;
  std::vector<Evaluation> evaluations_;
  std::optional<Evaluation> best_;
  int without_gain_ = 0;
};

/// The step whose checkpoint is the best of a run, from best.json beside `checkpoints`; nothing
/// where there is none, or it cannot be read.
struct BestStep {
  std::int64_t step = -1;
  bool load = true;   ///< run.best.load
  std::string text;   ///< "loss 0.4123 at step 1500"
};
[[nodiscard]] std::optional<BestStep> best_step(const std::filesystem::path& checkpoints);

/// `source` where it is a checkpoint, else of the run there the best one (unless run.best.load is
/// false), else the newest valid one. Error{checkpoint}: none is.
[[nodiscard]] std::filesystem::path checkpoint_in(const std::filesystem::path& source);

}  // namespace dstrain
