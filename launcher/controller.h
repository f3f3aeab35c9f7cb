#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/console.h"
#include "launcher/failure.h"
#include "launcher/host_problem.h"
#include "launcher/interrupts.h"
#include "launcher/placement.h"
#include "launcher/protocol.h"
#include "launcher/transport.h"

namespace dstrain::launcher {

/// Signals that asked the whole job to stop; lives longer than one start of it.
struct StopRequests {
  int count = 0;
  int last_signal = 0;
  /// The first came from a scheduler (SIGTERM, SIGUSR1), which wants the job to go on later.
  bool preempted = false;
};

/// One start of a job: who runs what, and how the agents are reached.
struct Generation {
  std::vector<NodePlacement> nodes;
  /// Parallel to `nodes`. The controller fills in what only the hellos tell: addresses.
  std::vector<PrepareJob> jobs;
  std::vector<std::unique_ptr<Transport>> transports;
  std::string build;  ///< that every agent must be
  /// How long an agent outlives the last ping; the controller gives an agent up a little earlier.
  /// Agents on this machine have none: the end of their stream comes at once.
  std::chrono::milliseconds lease{10'000};
};

/// How one start of the job ended.
struct Outcome {
  enum class Kind {
    finished,     ///< every rank ended with 0
    saved,        ///< asked to stop, saved, ended with 0
    interrupted,  ///< ended by signals before it could save
    failed,       ///< `report` says why
    unreachable   ///< no rank was started; `problems` says why
  };
  Kind kind = Kind::finished;
  int exit_code = 0;
  std::optional<FailureReport> report;
  std::vector<std::pair<std::string, HostProblem>> problems;  ///< host and what is wrong there
  std::vector<std::string> lost_hosts;                        ///< not to be used again in this job
  std::int64_t step = -1;  ///< highest step that any rank reached
};

/// Starts the agents, sees one generation of the job to its end, and leaves nothing of it behind.
/// Throws Error with an agent's own words when it could not prepare. Call under a Subreaper.
[[nodiscard]] Outcome run_generation(Generation generation, StopRequests& stops, Console& console,
                                     Interrupts& interrupts);

}  // namespace dstrain::launcher
