#pragma once

#include <string>
#include <vector>

namespace dstrain::launcher {

/// NAME=VALUE entries that ranks on other hosts get from `own` (entries of `environ`): what steers
/// training and its services (DSTRAIN_, NCCL_, GLOO_, OMP_, GOMP_, UCX_, FI_, HF_, WANDB_, CUDA_
/// but for CUDA_VISIBLE_DEVICES, which belongs to a host) and secrets by name. `wanted` adds NAME,
/// or NAME=VALUE whatever `own` says. Error{usage} for a NAME that is not set, is
/// no name or is set for each rank. They
/// travel in frames, byte for byte, never through a shell.
[[nodiscard]] std::vector<std::string> exported_environment(const std::vector<std::string>& own,
                                                            const std::vector<std::string>& wanted);

}  // namespace dstrain::launcher
