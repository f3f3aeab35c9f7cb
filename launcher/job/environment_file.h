#pragma once

#include <string>
#include <vector>

#include "engine/base/redact.h"
#include "launcher/hosts/machine.h"
#include "launcher/hosts/placement.h"

namespace dstrain::launcher {

/// Content of environment.json: build, command line, system, GPUs and their driver, placement, and
/// those environment variables that change how ranks run (CUDA_*, NCCL_*, GLOO_*, OMP_*,
/// DSTRAIN_*). Other variables are private. Secrets are struck
/// out: variables by their name, however short their value is, values that `redactor` knows, and
/// every VALUE of --env NAME=VALUE.
[[nodiscard]] std::string describe_environment(const std::string& build,
                                               const std::vector<std::string>& command_line,
                                               const Machine& machine, const Placement& placement,
                                               const Redactor& redactor);

}  // namespace dstrain::launcher
