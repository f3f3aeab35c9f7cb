#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/allocation.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {

class JoinedHosts;

struct ReachOptions {
  std::vector<std::string> agent_command;  ///< program (a path) and arguments of an agent
  std::filesystem::path ssh_config = {};   ///< ssh -F; empty: the user's own
  bool ship = false;                       ///< copy our own tree to hosts that lack it
  std::filesystem::path srun_log = {};     ///< srun's own standard error
  std::shared_ptr<JoinedHosts> joined = nullptr;
  /// Time after which a silent host is given up; empty: the default of each transport.
  std::optional<std::chrono::seconds> connect_limit = {};
};

/// The transport to these hosts, each of them by its own way (Host::reach). A host's node is its
/// place in the list.
[[nodiscard]] std::unique_ptr<Transport> reach_hosts(const std::vector<Host>& hosts,
                                                     const ReachOptions& options);

}  // namespace dstrain::launcher
