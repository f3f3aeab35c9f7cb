#pragma once

#include <filesystem>
#include <map>
#include <set>

#include "engine/report/run_data.h"

namespace dstrain::report {

/// Reads the last traced step of each rank into `run.timeline`: the events of category
/// dstrain_lane. Steps begin where the rank's own begins. Returns the ranks whose file is broken,
/// each a problem of the run.
[[nodiscard]] std::set<int> read_timeline(RunData& run,
                                          const std::map<int, std::filesystem::path>& files);

}  // namespace dstrain::report
