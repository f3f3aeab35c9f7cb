#pragma once

#include <filesystem>
#include <string>

#include "launcher/hosts/placement.h"
#include "launcher/job/launch.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// What the agent of one node is told of its ranks, but for what each start of the job draws anew
/// (attempt, secret, token). `resume_from`: a checkpoint or run directory; empty: from the
/// beginning.
[[nodiscard]] PrepareJob prepare_job(const LaunchOptions& options, const NodePlacement& node,
                                     int world_size, const std::filesystem::path& run,
                                     const std::string& resume_from);

}  // namespace dstrain::launcher
