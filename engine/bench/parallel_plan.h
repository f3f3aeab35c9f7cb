#pragma once

#include <string>
#include <vector>

#include "engine/bench/bench_plan.h"

namespace dstrain::bench {

/// What `dstrain bench parallel` runs.
struct ParallelOptions : BenchOptions {  ///< its recipes: a layout each
  bool weak = true;                      ///< tokens of a rank stay
  bool strong = true;                    ///< tokens of a step stay
  /// Tokens of a step of strong scaling; 0: 65,536, of images batch.global.
  int tokens = 0;
  /// Tokens of a rank in weak scaling; 0: `tokens` over the largest number of ranks, so that both
  /// meet there.
  int tokens_per_rank = 0;
  int steps = 20;  ///< that count
  int warmup = 5;  ///< before these
  int repeat = 1;
};

/// Every run ends with these behind the steps that count: one of warm-up and kTracedSteps that are
/// traced, then one of warm-up and kLoneSteps in which ranks exchange no parameters or gradients.
inline constexpr int kEndWarmup = 1;
inline constexpr int kTracedSteps = 3;
inline constexpr int kLoneSteps = 5;
/// Behind the steps that count, `counted` with their warm-up: the first that is traced, the first
/// without exchanges, and the first of those that are measured.
[[nodiscard]] constexpr int first_traced_step(int counted) { return counted + kEndWarmup + 1; }
[[nodiscard]] constexpr int first_skipping_step(int counted) {
  return first_traced_step(counted) + kTracedSteps;
}
[[nodiscard]] constexpr int first_lone_step(int counted) {
  return first_skipping_step(counted) + kEndWarmup;
}

/// A case of `samples` a step and these settings; its labels are the caller's.
[[nodiscard]] Case layout_case(std::size_t recipe, int ranks, int samples, int auto_row = 0,
                               const std::vector<std::string>& settings = {});
/// The recipes' own layouts by recipe and ranks. Error{usage} where tokens are given and are no
/// whole number of samples, or of a recipe of images.
[[nodiscard]] std::vector<Case> parallel_cases(const ParallelOptions& options);
/// Samples of a step of strong scaling.
[[nodiscard]] int strong_samples(const ParallelOptions& options, std::size_t recipe);
/// Those of a recipe and number of ranks must stand together.
[[nodiscard]] BenchPlan parallel_plan(const ParallelOptions& options, std::vector<Case> cases);

}  // namespace dstrain::bench
