#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/store/store.h"

namespace dstrain {

/// A process's environment; nullptr for a variable that is not set.
using Environment = std::function<const char*(const char*)>;

struct RankPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
};

/// Who this process is among the ranks of its job: what an agent or torchrun says, else mpirun,
/// else srun (for a step: a batch script is no rank of its own); alone without any. Error{usage}
/// names the variable that is missing or wrong.
[[nodiscard]] RankPlace rank_from_environment(const Environment& environment);

/// The store by which the ranks of `place.size` meet:
/// - MASTER_ADDR and MASTER_PORT with DSTRAIN_JOB_SECRET: make_job_store();
/// - without a secret: c10d's, which torchrun's agent may serve itself;
/// - else, inside a PMIx namespace (srun --mpi=pmix, mpirun): make_job_store() at a free port of
///   rank 0, with a secret of its own, both told by PMIx;
/// - else, in a step of Slurm: c10d's at the step's first host, at a port that derives from the
///   numbers of job and step (20000 to 59999).
/// Error{usage} when there is none of these, Error{hosts} when the others cannot be reached.
[[nodiscard]] std::shared_ptr<Store> meet_other_ranks(const RankPlace& place,
                                                      const Environment& environment);

/// Called by all ranks: returns when every rank has come. Error{hosts} on all that have, with the
/// numbers of those that have not when rank 0 has waited for `limit`.
void wait_for_all(Store& store, const RankPlace& place, std::chrono::milliseconds limit);

/// Called by all ranks when all is done: rank 0, which may serve the store, returns when the others
/// have called it, so that they have read what it said last, or after 3 s.
void leave(Store& store, const RankPlace& place);

/// First host of Slurm's node list: "n07" of "n[07-09,12],login".
[[nodiscard]] std::string first_host(std::string_view node_list);
/// The port of a plain step of Slurm.
[[nodiscard]] int port_of_step(int job, int step);

}  // namespace dstrain
