#pragma once

#include <string>
#include <vector>

#include "engine/bench/bench_plan.h"

namespace dstrain::bench {

/// What `dstrain bench parallel` runs.
struct ParallelOptions {
  std::vector<std::string> recipes;  ///< files, a layout each
  std::vector<int> ranks;
  bool weak = true;    ///< tokens of a rank stay
  bool strong = true;  ///< tokens of a step stay
  /// Tokens of a step of strong scaling; 0: 65,536, of images batch.global.
  int tokens = 0;
  /// Tokens of a rank in weak scaling; 0: `tokens` over the largest number of ranks, so that both meet there.
  int tokens_per_rank = 0;
  int steps = 20;  ///< that count
  int warmup = 5;  ///< before these
  int repeat = 1;
  std::vector<std::string> overrides;  ///< of every run
};

/// A training of the tables: a layout on a number of ranks with a batch.
struct ParallelWay {
  std::size_t recipe = 0;  ///< in ParallelOptions::recipes
  int ranks = 1;
  int samples = 1;  ///< of a step, batch.global
  bool weak = false;
  bool strong = false;  ///< both where their batches are equal
  /// Recipe whose search by `dstrain plan --auto` it is compared with; -1: none.
  int search = -1;
  // A row of that search.
  int row = 0;                             ///< from 1; 0: the recipe's own layout
  double row_step_s = 0;                   ///< as predicted there
  bool row_is_default = false;             ///< a layout that is shown whatever its time
  std::vector<std::string> settings = {};  ///< of the row
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

/// The recipes' own layouts by recipe and ranks. Error{usage} where tokens are given and are no
/// whole number of samples, or of a recipe of images.
[[nodiscard]] std::vector<ParallelWay> parallel_ways(const ParallelOptions& options);
/// Samples of a step of strong scaling.
[[nodiscard]] int strong_samples(const ParallelOptions& options, std::size_t recipe);
/// Cases in the order of `ways`, in which those of a recipe and number of ranks must stand
/// together.
[[nodiscard]] BenchPlan parallel_plan(const ParallelOptions& options,
                                      const std::vector<ParallelWay>& ways);

}  // namespace dstrain::bench
