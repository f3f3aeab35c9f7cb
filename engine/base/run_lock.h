#pragma once

#include <filesystem>

#include "engine/base/unique_fd.h"

namespace dstrain {

/// Takes the run directory `run` for one job: the one that launches ranks, or rank 0 of ranks that
/// torchrun, srun or mpirun started. Held as long as the descriptor is open, however its holder
/// ends. Error{usage} when another job holds it, Error{checkpoint} when it cannot be opened.
/// Without effect where the file system has no locks.
[[nodiscard]] UniqueFd lock_run(const std::filesystem::path& run);

}  // namespace dstrain
