#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/transport/visit_hosts.h"

namespace dstrain::launcher {

struct SweepOptions {
  std::string build;
  std::string run_directory;  ///< of the job whose processes are to be killed
  /// For all hosts together; those that cannot be reached are known sooner, by ssh's
  /// ConnectTimeout.
  std::chrono::milliseconds limit{8000};
};

/// What a sweep of one host came to.
struct HostSweep {
  int num_killed = 0;
  std::string problem = {};  ///< why it was not swept, in one line; empty: it was
};

/// After agents were lost: starts a fresh one on each of `num_hosts` hosts and lets it kill what
/// the lost one left of the job there, daemonised grandchildren of ranks included. One result per
/// host; never throws for what is wrong with a host.
[[nodiscard]] std::vector<HostSweep> sweep_hosts(std::size_t num_hosts, Transport& transport,
                                                 const SweepOptions& options);

}  // namespace dstrain::launcher
