#pragma once

#include <chrono>
#include <cstddef>
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

/// How long an agent of a job on so many nodes outlives the last ping. A large job rather waits for
/// a controller, a switch or a disk that is busy: there a lost host also shows in its peers'
/// collectives.
[[nodiscard]] constexpr std::chrono::milliseconds lease_of(std::size_t nodes) {
  return std::chrono::milliseconds(nodes > 128 ? 30'000 : 10'000);
}

/// One start of a job: who runs what, and how the agents are reached.
struct Attempt {
  std::vector<NodePlacement> nodes;
  /// Parallel to `nodes`. The controller fills in what only the hellos tell: addresses.
  std::vector<PrepareJob> jobs;
  std::unique_ptr<Transport> transport;  ///< of all nodes
  std::string build;                     ///< that every agent must be
  /// How long an agent outlives the last ping; the controller gives an agent up a little earlier.
  /// Agents on this machine have none: the end of their stream comes at once.
  std::chrono::milliseconds lease = lease_of(1);
};

/// Starts the agents, sees one attempt of the job to its end, and leaves nothing of it behind.
/// Throws Error with an agent's own words when it could not prepare. Call under a Subreaper.
[[nodiscard]] Outcome run_attempt(Attempt attempt, StopRequests& stops, Console& console,
                                  Interrupts& interrupts);

}  // namespace dstrain::launcher
