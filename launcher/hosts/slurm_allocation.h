#pragma once

#include <vector>

#include "launcher/hosts/allocation.h"

namespace dstrain::launcher {

/// Whether `variables` are those of a Slurm allocation whose nodes are ours to start agents on:
/// SLURM_JOB_ID without SLURM_STEP_ID, which would be one task of an srun.
[[nodiscard]] bool in_slurm_allocation(const Variables& variables);

/// Its nodes in Slurm's order, reach slurm even when there is one. Without `cpu_ranks` a node has a
/// slot for each of its GPUs; on the CPU as many as Slurm was asked for tasks, else one.
/// Error{usage} names the variable that contradicts another, or that hides the GPUs.
[[nodiscard]] Allocation allocate_slurm(bool cpu_ranks, const Variables& variables);

}  // namespace dstrain::launcher
