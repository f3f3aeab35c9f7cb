#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "launcher/console.h"
#include "launcher/interrupts.h"
#include "launcher/outcome.h"
#include "launcher/placement.h"
#include "launcher/protocol.h"
#include "launcher/stop_requests.h"
#include "launcher/transport.h"

namespace dstrain::launcher {

/// One start of a job: who runs what, and how the agents are reached.
struct Generation {
  std::vector<NodePlacement> nodes;
  /// Parallel to `nodes`. The controller fills in what only the hellos tell: addresses.
  std::vector<PrepareJob> jobs;
  std::unique_ptr<Transport> transport;  ///< of all nodes
  std::string build;                     ///< that every agent must be
  /// How long an agent outlives the last ping; the controller gives an agent up a little earlier.
  /// Agents on this machine have none: the end of their stream comes at once.
  std::chrono::milliseconds lease{10'000};
};

/// Starts the agents, sees one generation of the job to its end, and leaves nothing of it behind.
/// Throws Error with an agent's own words when it could not prepare. Call under a Subreaper.
[[nodiscard]] Outcome run_generation(Generation generation, StopRequests& stops, Console& console,
                                     Interrupts& interrupts);

}  // namespace dstrain::launcher
