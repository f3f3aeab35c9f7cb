#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/base/socket.h"
#include "launcher/base/fd.h"
#include "launcher/doctor/inspect.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// A port on every interface that takes connections and says nothing; 0 where there is none.
[[nodiscard]] ListeningSocket listen_for_peers();

/// Connects to all of `peers` at once and returns those that were not reached within `limit`.
[[nodiscard]] std::vector<PeerProblem> reach_peers(const std::vector<Peer>& peers,
                                                   std::chrono::milliseconds limit);

/// Which hosts each of `num_hosts` tries to reach: all others up to 32 hosts, above that its
/// successor in the list and some more, every host tried by as many.
[[nodiscard]] std::vector<std::vector<int>> choose_peers(int num_hosts);

/// A pair of which the first host did not reach the second.
struct UnreachedPair {
  int from = 0;
  int to = 0;
  std::string kind;  ///< "refused", "timeout", "no route", or the system's words
};

/// What to tell of host `host` about them.
struct PairFinding {
  int host = 0;
  Finding finding;
};
/// Blames as few hosts as possible: the one in most pairs first, with all of its own, and so on.
[[nodiscard]] std::vector<PairFinding> explain_pairs(std::vector<UnreachedPair> pairs,
                                                     const std::vector<std::vector<int>>& tried,
                                                     const std::vector<std::string>& names);

}  // namespace dstrain::launcher
