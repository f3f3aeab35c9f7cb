#pragma once

#include <filesystem>

#include "engine/report/run_data.h"

namespace dstrain::report {

/// Reads the last traced step of each rank from `traces`, or from the last of its windows, into
/// `run.timeline`: the events of category dstrain_lane. Steps begin where the rank's own begins.
/// What cannot be read becomes a problem of the run.
void read_timeline(RunData& run, const std::filesystem::path& traces);

}  // namespace dstrain::report
