#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/trace/action_runs.h"
#include "engine/trace/gpu_events.h"

namespace dstrain::trace {

/// The longest chain of actions that waited for each other, over all ranks, from the first start to
/// the last end. An action waits for the one before it on its lane, for those that the program
/// names, for its launch, and in a collective for the last rank. A host launches one action after
/// the other, and a step when the step before the last has ended. Clocks of the ranks are one.
struct CriticalPath {
  static constexpr const char* kHost = "(host)";   ///< until a launch
  static constexpr const char* kRest = "(other)";  ///< what waited for nothing known

  struct Row {
    std::string kind;  ///< of actions, or one of the two above
    int rank = 0;      ///< -1: all
    std::int64_t ns = 0;
  };
  std::int64_t length = 0;
  std::vector<Row> rows;   ///< add up to the length; largest first
  std::vector<Row> gains;  ///< by what it would be shorter, were that kind done in no time
};

/// Path of the runs of all ranks; events are not looked at. `collectives`: of all ranks, numbered.
/// Length 0 where no rank has a program.
[[nodiscard]] CriticalPath critical_path(const std::vector<RankEvents>& ranks,
                                         const std::vector<Collective>& collectives,
                                         const Names& names);

}  // namespace dstrain::trace
