#pragma once

#include <string>

#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// What an agent tells about itself.
struct AgentIdentity {
  std::string build;              ///< program and its version
  std::string address = {};       ///< of this host, as the controller reached it; or empty
  std::string peer_address = {};  ///< of the controller, as seen from here; or empty
};

/// Both addresses from SSH_CONNECTION, for an agent that ssh started.
[[nodiscard]] AgentIdentity identity_over_ssh(std::string build);

/// The process that starts and watches the ranks of one node (`dstrain agent`). Speaks
/// launcher/protocol/protocol.h on `in` and `out`; the end of file on `in`, or no ping for the
/// lease that the controller set, ends all ranks. Returns its exit code, on which nothing relies:
/// what matters was sent. Call from the main thread of a process that does nothing else: it forks,
/// blocks signals and reaps every child.
[[nodiscard]] int run_agent(UniqueFd in, UniqueFd out, const AgentIdentity& identity);
/// The same on a connection that dial() made, with both addresses from it.
[[nodiscard]] int run_dialled_agent(UniqueFd socket, std::string build);

}  // namespace dstrain::launcher
