#pragma once

#include <string>
#include <vector>

#include "launcher/base/run_directory.h"
#include "launcher/job/launch.h"

namespace dstrain::launcher {

/// Error{usage} for a file of the run that would hold the value of a secret.
[[noreturn]] void refuse_secret(const std::string& file, const std::string& variable);

/// Writes those that are not there with this content; a failure.json of before gets another name.
void write_run_files(const RunDirectory& run, const std::vector<RunFile>& files);

}  // namespace dstrain::launcher
