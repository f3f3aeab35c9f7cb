#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/base/console.h"
#include "launcher/base/interrupts.h"
#include "launcher/hosts/placement.h"
#include "launcher/job/outcome.h"
#include "launcher/job/stop_requests.h"
#include "launcher/protocol/protocol.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {

/// One start of a job: who runs what, and how the agents are reached.
struct Attempt {
  std::vector<NodePlacement> nodes;
  /// Parallel to `nodes`. The controller fills in what only the hellos tell: addresses.
  std::vector<PrepareJob> jobs;
  std::unique_ptr<Transport> transport;  ///< of all nodes
  std::string build;                     ///< that every agent must be
  /// How long an agent outlives the last ping; the controller gives an agent up a little earlier.
  /// Agents on this machine have none: the end of their stream comes at once.
  std::chrono::milliseconds lease{10'000};
};

/// Starts the agents, sees one attempt of the job to its end, and leaves nothing of it behind.
/// Throws Error with an agent's own words when it could not prepare. Call under a Subreaper.
[[nodiscard]] Outcome run_attempt(Attempt attempt, StopRequests& stops, Console& console,
                                     Interrupts& interrupts);

}  // namespace dstrain::launcher
