#pragma once

#include "engine/report/run_data.h"

namespace dstrain::report {

/// Reads the last traced step of each rank of the run, of its last window, into `run.timeline`: the
/// events of category dstrain_lane. Steps begin where the rank's own begins. What cannot be read
/// becomes a problem of the run.
void read_timeline(RunData& run);

}  // namespace dstrain::report
