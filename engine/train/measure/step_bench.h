#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/recipe/recipe.h"
#include "engine/train/measure/profile.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// Random data of the shape that the recipe's own would have, for `steps` steps.
void use_random_data(Recipe& recipe, int steps);

/// How fast one rank steps through a recipe, beside what its plan and its device promise.
struct StepBench {
  std::string device;
  double step_s = 0;  ///< median
  double fastest_s = 0;
  double slowest_s = 0;
  std::vector<std::pair<std::string, double>> start;  ///< parts before the first step, seconds
  double first_s = 0;                                 ///< the first step
  double host_s = 0;  ///< the host's work for a step, with nothing queued before it
  double planned_s = 0;
  std::string planned_for;  ///< name of the machine of the plan
  double rate = 0;          ///< images or tokens per second
  std::string unit;
  double flops = 0;  ///< useful ones of a step
  double mfu = 0;    ///< 0: the device's peak is not known
  Bytes memory = 0;  ///< peak of the allocator; 0 on the CPU
  Bytes planned_memory = 0;
  Bytes host_memory = 0;            ///< resident memory of the process at its peak
  Bytes planned_host_memory = 0;    ///< of it, what the plan offloads; 0: nothing
  std::vector<KernelTime> kernels;  ///< of one step; empty unless asked for
};

/// Steps of random data of the recipe's shape on this process's device: `warmup`, then `steps`
/// timed ones, then one under the profiler if asked.
[[nodiscard]] StepBench bench_step(Recipe recipe, const World& world, int warmup, int steps,
                                   bool kernels, RankRecordFile& record);
[[nodiscard]] std::string bench_report(const StepBench& bench);
[[nodiscard]] std::string kernel_report(const StepBench& bench, int max);

}  // namespace dstrain
