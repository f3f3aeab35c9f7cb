#pragma once

#include <string>
#include <vector>

#include "launcher/hosts/allocation.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// The ranks of one node: consecutive, counted by host order and then by slot.
struct NodePlacement {
  Host host;
  int first_rank = 0;
  int num_ranks = 0;
};

struct Placement {
  std::vector<NodePlacement> nodes;
  int world_size = 0;
};

/// The first `ranks` slots of the allocation, 0: all. Hosts beyond them are spares and get no rank.
/// Error{usage} with the slots of every host when there are not so many.
[[nodiscard]] Placement place(const Allocation& allocation, int ranks = 0);

/// Hosts of `after` that had no rank before.
[[nodiscard]] std::vector<std::string> added_hosts(const Placement& before, const Placement& after);

/// What the user has said about OpenMP; the rest is the launcher's to choose.
struct OpenMpChoice {
  bool threads = false;  ///< OMP_NUM_THREADS
  bool waiting = false;  ///< OMP_WAIT_POLICY or GOMP_SPINCOUNT
};
[[nodiscard]] OpenMpChoice openmp_choice(const Variables& variables);

/// NAME=VALUE of what a rank gets beside the agent's own environment
/// (engine/base/job_environment.h). Where `user` has not chosen: threads by the cores of the node,
/// and threads that sleep while they wait: on a machine where others compute, spinning ones keep
/// the work from the cores.
[[nodiscard]] std::vector<std::string> rank_environment(const PrepareJob& job,
                                                        const StartRanks& start, int local_rank,
                                                        OpenMpChoice user);

/// What `launch --dry-run` prints: who runs where, with which environment and command.
[[nodiscard]] std::string describe(const Placement& placement, const std::vector<PrepareJob>& jobs,
                                   OpenMpChoice user);

}  // namespace dstrain::launcher
