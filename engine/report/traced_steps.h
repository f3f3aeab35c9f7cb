#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/report/run_data.h"

namespace dstrain::report {

/// Reads the last window of the run's traces into `run.timeline` and `run.traced`: of traces/, else
/// of the folder that trace.output names, if its traces are of this run. Files that are broken are
/// problems of the run and left out of the figures; above 1 GiB together nothing is read.
void read_traces(RunData& run);

/// A kind of actions on the critical path of all ranks; nanoseconds.
struct PathKind {
  std::string kind;
  std::int64_t on_path = 0;
  /// By what the path would be shorter, were the kind done in no time; -1: not known.
  std::int64_t gain = 0;
};
/// The longest time on the path first.
[[nodiscard]] std::vector<PathKind> path_by_kind(const trace::CriticalPath& path);

/// Memory of a step; of the rank that allocated most. Bytes.
struct StepMemory {
  std::int64_t step = 0;
  int rank = 0;
  std::int64_t allocated = 0;
  std::int64_t reserved = 0;
  std::int64_t planned = -1;      ///< -1: not known
  std::int64_t driver_calls = 0;  ///< of cudaMalloc, of all ranks
};
/// By step; empty where the traces say nothing of memory.
[[nodiscard]] std::vector<StepMemory> memory_by_step(const trace::Analysis& analysis);

}  // namespace dstrain::report
